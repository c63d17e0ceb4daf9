/* The call entry: the first level of dispatch (Section 2.4, Algorithm 2.1), and the way into the kernels.

   The first level must decide in well under a microsecond whether the call may use a version that served an earlier one.
   Algorithm 2.1 compares object identities and version counters, because metadata of the same object stays the same. In
   PyTorch it does not (`x.data = y`, `x.t_()`, `x.requires_grad_()`), and new tensors would always miss. Here the
   metadata itself is compared: through DLPack one call reads shape, strides, dtype, device and address, in a few
   nanoseconds. That is the tensor part of the key, so equal answers mean an equal key whichever object it is; nothing
   is kept alive, and no id can be confused with that of a later object.

   An Entry holds a few Lines, most recently used first. A Line is what one version expects of a call, and what to run. Whatever
   no line covers (keyword arguments, containers, modes, the first call) goes to `_dispatch`, which is written
   in Python and makes new lines. */

#include "line.h"

#include <stdlib.h>
#include <string.h>
#include <structmember.h>

enum { MOST_LINES = 8, INLINE_TENSORS = 32 };

static PyObject *dispatch_name;

/* -- comparing with what a line expects --------------------------------------------------------------------------- */

static inline bool expected_tensor(const Expected *expected, PyObject *object, DLTensor *tensor) {
    if (Py_TYPE(object) != expected->type || exchange->view(object, tensor)) return false;
    if (tensor->ndim != expected->ndim || tensor->device.type != expected->device.type ||
        tensor->device.id != expected->device.id || tensor->dtype.code != expected->dtype.code ||
        tensor->dtype.bits != expected->dtype.bits)
        return false;
    size_t half = sizeof(int64_t) * tensor->ndim;
    if (memcmp(tensor->shape, expected->metadata, half) ||
        memcmp(tensor->strides, expected->metadata + tensor->ndim, half))
        return false;
    if (!tensor->data) { /* zeros that have no memory look like any other tensor; one without elements is none */
        int32_t i = 0;
        while (i < tensor->ndim && tensor->shape[i]) i++;
        if (i == tensor->ndim) return false;
    }
    PyObject *flag = PyObject_GetAttr(object, requires_grad_name);
    if (!flag) return false;
    Py_DECREF(flag);
    if ((flag == Py_True) != expected->requires_grad) return false;
    flag = PyObject_CallMethodNoArgs(object, is_neg_name); /* a pending sign change is invisible in the layout */
    if (!flag) return false;
    Py_DECREF(flag);
    return flag == Py_False;
}

/* Equal as parts of a key: same type, same value, told apart where == does not (0.0 and -0.0, NaN). */
static inline bool expected_value(const Expected *expected, PyObject *object) {
    if (object == expected->value) return true;
    if (Py_TYPE(object) != expected->type) return false;
    if (expected->type == &PyFloat_Type) {
        double a = PyFloat_AS_DOUBLE(object), b = PyFloat_AS_DOUBLE(expected->value);
        return memcmp(&a, &b, sizeof a) == 0;
    }
    if (expected->type == &PyLong_Type || expected->type == &PyUnicode_Type)
        return PyObject_RichCompareBool(object, expected->value, Py_EQ) == 1;
    return false; /* only identity for the rest: another look at a lower level does no harm */
}

/* A new reference to what lives at a place now. */
static inline PyObject *read_place(const Place *place) {
    switch (place->how) {
    case CELL: return PyCell_Get(place->holder);
    case ATTRIBUTE: return PyObject_GetAttr(place->holder, place->key);
    default:
        if (!PyDict_CheckExact(place->holder)) return PyObject_GetItem(place->holder, place->key);
        return Py_XNewRef(PyDict_GetItemWithError(place->holder, place->key));
    }
}

/* Whether a dict has exactly these keys, in this order, compared by identity as everything here. */
static bool keys_are(PyObject *dict, PyObject *keys) {
    if (!PyDict_CheckExact(dict) || PyDict_GET_SIZE(dict) != PyTuple_GET_SIZE(keys)) return false;
    PyObject *key;
    for (Py_ssize_t position = 0, k = 0; PyDict_Next(dict, &position, &key, NULL); k++)
        if (key != PyTuple_GET_ITEM(keys, k)) return false;
    return true;
}

static inline bool place_is_same(const Place *place) {
    if (place->how == KEYS) return keys_are(place->holder, place->found);
    if (place->how == LENGTH) return PyObject_Size(place->holder) == PyLong_AsSsize_t(place->found);
    PyObject *now = read_place(place);
    Py_XDECREF(now); /* compared by identity only, and `found` keeps its object alive */
    return now == place->found;
}

/* -- aliasing ----------------------------------------------------------------------------------------------------- */

typedef struct { uintptr_t start, end; } Span;

static int by_start(const void *a, const void *b) {
    uintptr_t x = ((const Span *)a)->start, y = ((const Span *)b)->start;
    return (x > y) - (x < y);
}

static inline const Expected *expectation(const Line *line, Py_ssize_t tensor) {
    if (tensor < line->free) return &line->lifted[tensor];
    if (tensor >= line->tensors) return &line->watch[tensor - line->tensors];
    Py_ssize_t wanted = tensor - line->free;
    for (Py_ssize_t k = 0; k < line->arguments; k++)
        if (!line->argument[k].value && wanted-- == 0) return &line->argument[k];
    return NULL;
}

/* Whether no two tensors share memory: lines are made only for calls where none do. O(n log n), O(n) if all addresses
   are those of the last call that was found right. */
static bool nothing_shared(Line *line, void **addresses) {
    Py_ssize_t total = line->tensors + line->watched;
    if (total < 2 || !memcmp(line->seen, addresses, sizeof(void *) * total)) return true;
    Span inside[INLINE_TENSORS], *spans = total <= INLINE_TENSORS ? inside : malloc(sizeof(Span) * total);
    if (!spans) return false;
    Py_ssize_t count = 0;
    for (Py_ssize_t k = 0; k < total; k++) {
        size_t extent = expectation(line, k)->extent;
        uintptr_t start = (uintptr_t)addresses[k];
        if (extent && start) spans[count++] = (Span){start, start + extent};
    }
    bool shared = false;
    if (count == 2) {
        shared = spans[0].start < spans[1].end && spans[1].start < spans[0].end;
    } else {
        qsort(spans, count, sizeof(Span), by_start);
        for (Py_ssize_t k = 1; k < count && !shared; k++) shared = spans[k].start < spans[k - 1].end;
    }
    if (spans != inside) free(spans);
    if (!shared) memcpy(line->seen, addresses, sizeof(void *) * total);
    return !shared;
}

/* -- a call ------------------------------------------------------------------------------------------------------- */

static PyObject *list_of(PyObject *const *objects, Py_ssize_t count) {
    PyObject *list = PyList_New(count);
    for (Py_ssize_t k = 0; list && k < count; k++) PyList_SET_ITEM(list, k, Py_NewRef(objects[k]));
    return list;
}

/* What a replay answered during this call. Versions that differ in their answers only share one replay, and it runs once. */
typedef struct { PyObject *replay, *answers; } Answered;

static bool gates_agree(const Line *line, PyObject *const *objects, Answered *answered) {
    if (answered->replay != line->replay) {
        PyObject *flat = list_of(objects, line->tensors);
        PyObject *answers = flat ? PyObject_CallOneArg(line->replay, flat) : NULL;
        Py_XDECREF(flat);
        if (!answers) return false;
        Py_XSETREF(answered->replay, Py_NewRef(line->replay));
        Py_XSETREF(answered->answers, answers);
    }
    return PyObject_RichCompareBool(answered->answers, line->gates, Py_EQ) == 1;
}

/* Checks the call against a line. Returns 1 and the result if it fits, 0 if it does not, -1 on an error of what ran. */
static int try_line(Line *line, PyObject *const *args, Py_ssize_t count, Answered *answered, PyObject **result) {
    if (count != line->arguments) return 0;
    void *inside_addresses[INLINE_TENSORS];
    PyObject *inside_objects[INLINE_TENSORS];
    bool many = line->tensors + line->watched > INLINE_TENSORS;
    void **addresses = many ? malloc(sizeof(void *) * (line->tensors + line->watched)) : inside_addresses;
    PyObject **objects = many ? malloc(sizeof(PyObject *) * line->tensors) : inside_objects;
    Py_ssize_t position = line->free, lifted = 0;
    int outcome = 0;
    if (!addresses || !objects) goto done;
    DLTensor tensor;
    for (Py_ssize_t k = 0; k < count; k++) {
        Expected *expected = &line->argument[k];
        if (expected->value) {
            if (!expected_value(expected, args[k])) goto done;
            continue;
        }
        if (!expected_tensor(expected, args[k], &tensor)) goto done;
        addresses[position] = (char *)tensor.data + tensor.byte_offset;
        objects[position++] = args[k];
    }
    if (!ambient_is(line->state, line->quick_state)) goto done;
    for (Py_ssize_t k = 0; k < line->places; k++)
        if (!place_is_same(&line->place[k])) goto done;
    for (; lifted < line->free; lifted++) {
        PyObject *object = objects[lifted] = read_place(&line->lifted_place[lifted]);
        if (!object) goto done;
        if (!expected_tensor(&line->lifted[lifted], object, &tensor)) {
            lifted++;
            goto done;
        }
        addresses[lifted] = (char *)tensor.data + tensor.byte_offset;
    }
    for (Py_ssize_t k = 0; k < line->watched; k++) {
        PyObject *object = read_place(&line->watched_place[k]);
        bool same = object && expected_tensor(&line->watch[k], object, &tensor);
        Py_XDECREF(object);
        if (!same) goto done;
        addresses[line->tensors + k] = (char *)tensor.data + tensor.byte_offset;
    }
    if (!nothing_shared(line, addresses)) goto done;
    if (line->replay && !gates_agree(line, objects, answered)) goto done;
    line->calls++;
    outcome = -1;
    if (Py_TYPE(line->run) == program_type) {
        bool as_tuple = line->rebuild != Py_None || program_outputs((Program *)line->run) != 1;
        *result = program_run((Program *)line->run, addresses, objects, as_tuple, NULL);
    } else {
        PyObject *flat = list_of(objects, line->tensors);
        if (!flat) goto done;
        *result = PyObject_CallOneArg(line->run, flat);
        Py_DECREF(flat);
    }
    if (*result && (line->rebuild != Py_None || PyTuple_CheckExact(*result))) {
        PyObject *built = line->rebuild != Py_None ? PyObject_CallOneArg(line->rebuild, *result)
                                                   : PySequence_GetItem(*result, 0);
        Py_SETREF(*result, built);
    }
    if (*result) outcome = 1;
done:
    if (outcome == 0 && PyErr_Occurred()) { /* what cannot be read here is for a lower level to judge */
        if (PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear();
        else outcome = -1; /* an interrupt from the keyboard */
    }
    while (lifted > 0) Py_DECREF(objects[--lifted]);
    if (many) {
        free(addresses);
        free(objects);
    }
    return outcome;
}

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    Py_ssize_t lines, entered; /* calls served here since the last reset */
    Line *line[MOST_LINES];
    int last_level;
} Entry;

/* The result of the line these arguments fit; NULL without an error if there is none. */
static PyObject *serve(Entry *self, PyObject *const *args, Py_ssize_t count) {
    Answered answered = {NULL, NULL};
    PyObject *result = NULL;
    int outcome = 0;
    for (Py_ssize_t k = 0; k < self->lines && !outcome; k++) {
        Line *line = (Line *)Py_NewRef(self->line[k]); /* the function may reset the entry */
        outcome = try_line(line, args, count, &answered, &result);
        if (outcome > 0) {
            self->last_level = 1;
            self->entered++;
            if (k > 0 && k < self->lines && self->line[k] == line) {
                self->line[k] = self->line[0];
                self->line[0] = line;
            }
        }
        Py_DECREF(line);
    }
    Py_XDECREF(answered.replay);
    Py_XDECREF(answered.answers);
    return result;
}

static PyObject *entry_vectorcall(PyObject *object, PyObject *const *args, size_t flags, PyObject *names) {
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    if (!names || PyTuple_GET_SIZE(names) == 0) {
        PyObject *result = serve((Entry *)object, args, count);
        if (result || PyErr_Occurred()) return result;
    }
    PyObject *slow = PyObject_GetAttr(object, dispatch_name);
    if (!slow) return NULL;
    PyObject *result = PyObject_Vectorcall(slow, args, count, names);
    Py_DECREF(slow);
    return result;
}

/* _serve(args): (result,) if the first level can serve a call whose keywords have been put in their places, else None. */
static PyObject *entry_serve(Entry *self, PyObject *args) {
    if (!PyTuple_CheckExact(args)) {
        PyErr_SetString(PyExc_TypeError, "the arguments are a tuple");
        return NULL;
    }
    PyObject *result = serve(self, PySequence_Fast_ITEMS(args), PyTuple_GET_SIZE(args));
    if (!result) return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    PyObject *wrapped = PyTuple_Pack(1, result);
    Py_DECREF(result);
    return wrapped;
}

static PyObject *entry_call(PyObject *self, PyObject *args, PyObject *kwargs) {
    if (!kwargs || PyDict_GET_SIZE(kwargs) == 0)
        return entry_vectorcall(self, PySequence_Fast_ITEMS(args), PyTuple_GET_SIZE(args), NULL);
    PyObject *slow = PyObject_GetAttr(self, dispatch_name);
    if (!slow) return NULL;
    PyObject *result = PyObject_Call(slow, args, kwargs);
    Py_DECREF(slow);
    return result;
}

static PyObject *entry_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    Entry *self = (Entry *)type->tp_alloc(type, 0);
    if (self) self->call = entry_vectorcall;
    return (PyObject *)self;
}

/* _add_line(line, outdated): the newest line goes first; `outdated`, or else one unused for long, makes room. */
static PyObject *entry_add(Entry *self, PyObject *args) {
    PyObject *line, *outdated;
    if (!PyArg_ParseTuple(args, "O!O", line_type, &line, &outdated)) return NULL;
    for (Py_ssize_t k = 0; k < self->lines; k++) {
        if ((PyObject *)self->line[k] != outdated) continue;
        self->lines--;
        memmove(self->line + k, self->line + k + 1, sizeof(Line *) * (self->lines - k));
        Py_DECREF(outdated);
        break;
    }
    if (self->lines == MOST_LINES) Py_DECREF(self->line[--self->lines]);
    memmove(self->line + 1, self->line, sizeof(Line *) * self->lines);
    self->line[0] = (Line *)Py_NewRef(line);
    self->lines++;
    Py_RETURN_NONE;
}

static PyObject *entry_forget(Entry *self, PyObject *unused) {
    while (self->lines) Py_DECREF(self->line[--self->lines]);
    self->entered = 0;
    self->last_level = 0;
    Py_RETURN_NONE;
}

static int entry_traverse(Entry *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    for (Py_ssize_t k = 0; k < self->lines; k++) Py_VISIT(self->line[k]);
    return 0;
}

static int entry_clear(Entry *self) {
    while (self->lines) Py_DECREF(self->line[--self->lines]);
    return 0;
}

static void entry_dealloc(Entry *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    entry_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef entry_methods[] = {
    {"_add_line", (PyCFunction)entry_add, METH_VARARGS, "Serve calls that fit this line, in place of an outdated one."},
    {"_serve", (PyCFunction)entry_serve, METH_O, "The result in a tuple if a line fits these arguments, else None."},
    {"_forget_lines", (PyCFunction)entry_forget, METH_NOARGS, "Drop every line and the counts."},
    {NULL},
};
static PyMemberDef entry_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Entry, call), READONLY},
    {"_entered", T_PYSSIZET, offsetof(Entry, entered), READONLY},
    {"last_level", T_INT, offsetof(Entry, last_level), 0},
    {NULL},
};
static PyType_Slot entry_slots[] = {
    {Py_tp_doc, "A callable that serves calls from its lines and passes the others to self._dispatch."},
    {Py_tp_new, entry_new}, {Py_tp_call, entry_call}, {Py_tp_traverse, entry_traverse}, {Py_tp_clear, entry_clear},
    {Py_tp_dealloc, entry_dealloc}, {Py_tp_methods, entry_methods}, {Py_tp_members, entry_members}, {0, NULL},
};
PyType_Spec entry_spec = {"staxlab.native._native.Entry", sizeof(Entry), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
                          entry_slots};

/* connect_entry(Line, table of ambient readers, forward_ad's dict): called once, by `connect`. */
int connect_entry(PyObject *type, PyObject *table, PyObject *level) {
    line_type = (PyTypeObject *)type;
    requires_grad_name = PyUnicode_InternFromString("requires_grad");
    is_neg_name = PyUnicode_InternFromString("is_neg");
    dispatch_name = PyUnicode_InternFromString("_dispatch");
    return requires_grad_name && is_neg_name && dispatch_name ? connect_ambient(table, level) : -1;
}
