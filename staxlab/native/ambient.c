/* The ambient state of a call (Definition 2.2's rho and more), read in nanoseconds.

   Gradient mode, autocast, enclosing modes and transforms change what a function computes without being arguments. Each is
   read by a function of PyTorch's Python interface. Those only wrap C++ functions; where the library that holds one exports
   it, it is called directly. */

#include "native.h"

/* Zero-argument functions of PyTorch that read the ambient state, and what they must answer. */
enum { GRAD_MODE, INFERENCE_MODE, DEFAULT_DTYPE, DETERMINISTIC, /* in the key: compared with the line's own */
       AUTOCAST = STATE_IN_KEY, FUNCTION_MODES, DISPATCH_MODES, TRANSFORMS, TRACING, READERS }; /* must be off */
static PyObject *readers[READERS];
static PyObject *off[READERS];            /* False, 0 or None */

/* These functions only wrap C++ functions of PyTorch's. The address of one, where a library exports it, saves going through
   Python; its kind says how it is called. ASK: there is none, ask Python. */
enum { ASK, FLAG, DEPTH, SCALAR, FLAG_OF_DEVICES, FLAG_OF_KEY, FLAG_OF_OBJECT, POINTER };
typedef struct {
    long kind;
    uintptr_t function, argument;
} Shortcut;
static Shortcut shortcuts[READERS];
static PyObject *forward_ad, *level_name; /* the dict of torch.autograd.forward_ad, "_current_level" */

/* The answer of a shortcut, -1 where there is none. */
static inline int64_t shortcut(int k) {
    const Shortcut *s = &shortcuts[k];
    switch (s->kind) {
    case FLAG: return ((bool (*)(void))s->function)();
    case DEPTH: return ((int64_t (*)(void))s->function)();
    case SCALAR: return ((int8_t (*)(void))s->function)() & 0xff;
    case FLAG_OF_DEVICES: /* CPU, CUDA */
        return ((bool (*)(int8_t))s->function)(0) | ((bool (*)(int8_t))s->function)(1);
    case FLAG_OF_KEY: return ((bool (*)(uint16_t))s->function)((uint16_t)s->argument);
    case FLAG_OF_OBJECT: return ((bool (*)(uintptr_t))s->function)(s->argument);
    case POINTER: return *((void **(*)(void))s->function)() != NULL; /* a reference to a shared pointer */
    default: return -1;
    }
}

bool ambient_is(PyObject *const *state, const int64_t *quick_state) {
    for (int k = 0; k < READERS; k++) {
        int64_t quick = shortcut(k);
        if (quick >= 0) {
            if (quick != (k < STATE_IN_KEY ? quick_state[k] : 0)) return false;
            continue;
        }
        PyObject *answer = PyObject_CallNoArgs(readers[k]);
        if (!answer) return false;
        bool same = answer == (k < STATE_IN_KEY ? state[k] : off[k]);
        Py_DECREF(answer);
        if (!same) return false;
    }
    PyObject *level = PyDict_GetItemWithError(forward_ad, level_name);
    return level && PyLong_Check(level) && PyLong_AsLong(level) < 0;
}

int ambient_autocast(void) {
    PyObject *answer = PyObject_CallNoArgs(readers[AUTOCAST]); /* of all devices, which the shortcut does not know */
    int is_on = answer ? answer != off[AUTOCAST] : -1;
    Py_XDECREF(answer);
    return is_on;
}

/* What the shortcuts answer for the part of the state that is in the key; -1 where Python is asked. */
void ambient_quick(int64_t *quick_state) {
    for (int k = 0; k < STATE_IN_KEY; k++) quick_state[k] = shortcut(k);
}

/* What the shortcuts answer now, None for those that do not exist: a test compares them with the Python functions. */
PyObject *ambient_shortcuts(PyObject *module, PyObject *unused) {
    PyObject *answers = PyTuple_New(READERS);
    for (int k = 0; answers && k < READERS; k++) {
        int64_t quick = shortcut(k);
        PyTuple_SET_ITEM(answers, k, quick < 0 ? Py_NewRef(Py_None) : PyLong_FromLongLong(quick));
    }
    return answers;
}

/* connect_ambient(((reader, answer when off, kind of shortcut, its address, its argument), ...), forward_ad's dict). */
int connect_ambient(PyObject *table, PyObject *level) {
    if (!PyTuple_Check(table) || PyTuple_GET_SIZE(table) != READERS || !PyDict_Check(level)) {
        PyErr_Format(PyExc_ValueError, "%d readers of the ambient state expected", (int)READERS);
        return -1;
    }
    for (int k = 0; k < READERS; k++) {
        PyObject *reader, *answer;
        long kind;
        unsigned long long function, argument;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(table, k), "OOlKK", &reader, &answer, &kind, &function, &argument))
            return -1;
        Py_XSETREF(readers[k], Py_NewRef(reader));
        Py_XSETREF(off[k], Py_NewRef(answer));
        shortcuts[k] = (Shortcut){function ? kind : ASK, (uintptr_t)function, (uintptr_t)argument};
    }
    Py_XSETREF(forward_ad, Py_NewRef(level));
    if (!level_name) level_name = PyUnicode_InternFromString("_current_level");
    return level_name ? 0 : -1;
}
