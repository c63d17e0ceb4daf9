/* Making a line from a call that a version has just served. */

#include "line.h"

#include <stdlib.h>
#include <string.h>
#include <structmember.h>

PyTypeObject *line_type;
PyObject *requires_grad_name, *is_neg_name;

static int describe(Expected *expected, PyObject *object) {
    DLTensor tensor;
    if (exchange->view(object, &tensor)) return -1;
    PyObject *flag = PyObject_GetAttr(object, requires_grad_name);
    if (!flag) return -1;
    expected->requires_grad = flag == Py_True;
    Py_DECREF(flag);
    flag = PyObject_CallMethodNoArgs(object, is_neg_name);
    if (!flag) return -1;
    Py_DECREF(flag);
    if (flag == Py_True) {
        PyErr_SetString(PyExc_ValueError, "a tensor with a pending change of sign is not known by its metadata");
        return -1;
    }
    expected->type = (PyTypeObject *)Py_NewRef(Py_TYPE(object));
    expected->device = tensor.device;
    expected->dtype = tensor.dtype;
    expected->ndim = tensor.ndim;
    expected->metadata = PyMem_Calloc(2 * tensor.ndim + 1, sizeof(int64_t));
    if (!expected->metadata) return PyErr_NoMemory(), -1;
    size_t reach = 1;
    bool empty = false;
    for (int k = 0; k < tensor.ndim; k++) {
        expected->metadata[k] = tensor.shape[k];
        expected->metadata[tensor.ndim + k] = tensor.strides[k];
        empty |= tensor.shape[k] == 0;
        reach += (size_t)((tensor.shape[k] - 1) * tensor.strides[k]);
    }
    expected->extent = empty ? 0 : reach * (size_t)((tensor.dtype.bits * tensor.dtype.lanes + 7) / 8);
    return 0;
}

static int read_places(PyObject *sequence, Place *places, Py_ssize_t *count) {
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(sequence); k++) {
        Place *place = &places[k];
        PyObject *holder, *key, *found;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(sequence, k), "lOOO", &place->how, &holder, &key, &found)) return -1;
        if (place->how < ITEM || place->how > KEYS || (place->how == CELL && !PyCell_Check(holder))) {
            PyErr_SetString(PyExc_ValueError, "there is no such place");
            return -1;
        }
        place->holder = Py_NewRef(holder);
        place->key = Py_NewRef(key);
        place->found = Py_NewRef(found);
        *count = k + 1;
    }
    return 0;
}

/* Line(args, flat, lifted places, other places, watched places, watched tensors, state, replay, gates, run, rebuild): the
   first of the `flat` tensors are lifted ones. */
static PyObject *line_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *arguments, *flat, *lifted, *places, *watch, *watch_now, *state, *replay, *gates, *run, *rebuild;
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!O!O!OOOO", &PyTuple_Type, &arguments, &PyList_Type, &flat, &PyTuple_Type,
                          &lifted, &PyTuple_Type, &places, &PyTuple_Type, &watch, &PyTuple_Type, &watch_now, &PyTuple_Type,
                          &state, &replay, &gates, &run, &rebuild))
        return NULL;
    Py_ssize_t free = PyTuple_GET_SIZE(lifted);
    Py_ssize_t watched = PyTuple_GET_SIZE(watch);
    if (!exchange || PyTuple_GET_SIZE(state) != STATE_IN_KEY || free > PyList_GET_SIZE(flat) ||
        PyTuple_GET_SIZE(watch_now) != watched) {
        PyErr_SetString(PyExc_ValueError, "this is not a line");
        return NULL;
    }
    Line *self = (Line *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->tensors = PyList_GET_SIZE(flat);
    self->argument = PyMem_Calloc(PyTuple_GET_SIZE(arguments) + 1, sizeof(Expected));
    self->lifted = PyMem_Calloc(free + 1, sizeof(Expected));
    self->seen = PyMem_Calloc(self->tensors + watched + 1, sizeof(uintptr_t));
    self->watch = PyMem_Calloc(watched + 1, sizeof(Expected));
    self->watched_place = PyMem_Calloc(watched + 1, sizeof(Place));
    self->lifted_place = PyMem_Calloc(free + 1, sizeof(Place));
    self->place = PyMem_Calloc(PyTuple_GET_SIZE(places) + 1, sizeof(Place));
    if (!self->argument || !self->lifted || !self->seen || !self->lifted_place || !self->place ||
        !self->watch || !self->watched_place) {
        PyErr_NoMemory();
        goto failed;
    }
    Py_ssize_t count = 0;
    self->free = free;
    self->watched = watched;
    if (read_places(places, self->place, &self->places) || read_places(lifted, self->lifted_place, &count) ||
        read_places(watch, self->watched_place, &count))
        goto failed;
    for (Py_ssize_t k = 0; k < watched; k++)
        if (describe(&self->watch[k], PyTuple_GET_ITEM(watch_now, k))) goto failed;
    Py_ssize_t position = free;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(arguments); k++) {
        PyObject *object = PyTuple_GET_ITEM(arguments, k);
        Expected *expected = &self->argument[k];
        self->arguments = k + 1;
        if (PyObject_TypeCheck(object, tensor_type)) {
            if (position >= self->tensors || PyList_GET_ITEM(flat, position) != object) {
                PyErr_SetString(PyExc_ValueError, "the flat tensors are not the arguments' own");
                goto failed;
            }
            position++;
            if (describe(expected, object)) goto failed;
        } else {
            expected->type = (PyTypeObject *)Py_NewRef(Py_TYPE(object));
            expected->value = Py_NewRef(object);
        }
    }
    if (position != self->tensors) {
        PyErr_SetString(PyExc_ValueError, "there are more flat tensors than arguments");
        goto failed;
    }
    for (Py_ssize_t k = 0; k < free; k++)
        if (describe(&self->lifted[k], PyList_GET_ITEM(flat, k))) goto failed;
    if (Py_TYPE(run) == program_type && program_inputs((Program *)run) != self->tensors) {
        PyErr_SetString(PyExc_ValueError, "the program takes another number of tensors");
        goto failed;
    }
    for (int k = 0; k < STATE_IN_KEY; k++) self->state[k] = Py_NewRef(PyTuple_GET_ITEM(state, k));
    ambient_quick(self->quick_state); /* the line is made during the call it describes */
    if (replay != Py_None) {
        self->replay = Py_NewRef(replay);
        self->gates = Py_NewRef(gates);
    }
    self->run = Py_NewRef(run);
    self->rebuild = Py_NewRef(rebuild);
    return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

static int line_traverse(Line *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    for (Py_ssize_t k = 0; self->argument && k < self->arguments; k++) Py_VISIT(self->argument[k].value);
    for (int k = 0; k < STATE_IN_KEY; k++) Py_VISIT(self->state[k]);
    for (Py_ssize_t k = 0; k < self->free && self->lifted_place; k++) {
        Py_VISIT(self->lifted_place[k].holder);
        Py_VISIT(self->lifted_place[k].key);
    }
    for (Py_ssize_t k = 0; k < self->watched && self->watched_place; k++) {
        Py_VISIT(self->watched_place[k].holder);
        Py_VISIT(self->watched_place[k].key);
    }
    for (Py_ssize_t k = 0; k < self->places; k++) {
        Py_VISIT(self->place[k].holder);
        Py_VISIT(self->place[k].key);
        Py_VISIT(self->place[k].found);
    }
    Py_VISIT(self->replay);
    Py_VISIT(self->gates);
    Py_VISIT(self->run);
    Py_VISIT(self->rebuild);
    return 0;
}

static int line_clear(Line *self) {
    for (int k = 0; k < STATE_IN_KEY; k++) Py_CLEAR(self->state[k]);
    for (Py_ssize_t k = 0; k < self->places; k++) {
        Py_CLEAR(self->place[k].holder);
        Py_CLEAR(self->place[k].key);
        Py_CLEAR(self->place[k].found);
    }
    for (Py_ssize_t k = 0; k < self->free && self->lifted_place; k++) {
        Py_CLEAR(self->lifted_place[k].holder);
        Py_CLEAR(self->lifted_place[k].key);
        Py_CLEAR(self->lifted_place[k].found);
    }
    for (Py_ssize_t k = 0; k < self->watched && self->watched_place; k++) {
        Py_CLEAR(self->watched_place[k].holder);
        Py_CLEAR(self->watched_place[k].key);
        Py_CLEAR(self->watched_place[k].found);
    }
    self->places = 0;
    Py_CLEAR(self->replay);
    Py_CLEAR(self->gates);
    Py_CLEAR(self->run);
    Py_CLEAR(self->rebuild);
    return 0;
}

static void forget(Expected *expected, Py_ssize_t count) {
    for (Py_ssize_t k = 0; expected && k < count; k++) {
        Py_XDECREF(expected[k].type);
        Py_XDECREF(expected[k].value);
        PyMem_Free(expected[k].metadata);
    }
    PyMem_Free(expected);
}

static void line_dealloc(Line *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    line_clear(self);
    forget(self->argument, self->arguments);
    forget(self->lifted, self->free);
    forget(self->watch, self->watched);
    PyMem_Free(self->watched_place);
    PyMem_Free(self->seen);
    PyMem_Free(self->lifted_place);
    PyMem_Free(self->place);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef line_members[] = {
    {"calls", T_PYSSIZET, offsetof(Line, calls), READONLY},
    {NULL},
};
static PyType_Slot line_slots[] = {
    {Py_tp_doc, "What a version expects of a call, and what to run."}, {Py_tp_new, line_new},
    {Py_tp_traverse, line_traverse}, {Py_tp_clear, line_clear}, {Py_tp_dealloc, line_dealloc},
    {Py_tp_members, line_members}, {0, NULL},
};
PyType_Spec line_spec = {"staxlab.native._native.Line", sizeof(Line), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                         line_slots};
