/* A program: the kernels of one compiled region, run without the interpreter (Section 8.5).

   It is what the generated Python wrapper says, as a table. Slots are numbered inputs first, then buffers; a step takes
   its buffers from the pool, calls one kernel with the addresses of some slots, and gives back the buffers nobody reads
   afterwards. Results leave as tensors through DLPack; when the last reference to one dies its block returns to the
   pool. */

#include "native.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_ARGUMENTS = 16, MOST_SLOTS = 256 };

typedef struct {
    size_t bytes;
    DLDataType dtype;
    int32_t ndim;
    int64_t shape[MOST_DIMENSIONS], strides[MOST_DIMENSIONS];
} Buffer;

typedef struct {
    void (*kernel)(void);
    int arguments[MOST_ARGUMENTS], count;
    int *takes, taken, *gives, given; /* buffer slots */
    bool unlocked;                    /* long enough to let other Python threads run meanwhile */
} Step;

struct Program {
    PyObject_HEAD
    Py_ssize_t inputs, buffers, steps, outputs;
    Buffer *buffer;
    Step *step;
    int *output; /* slots */
    PyObject *keep; /* what the kernels' addresses depend on: the loaded libraries */
};

const Exchange *exchange;
PyTypeObject *tensor_type, *program_type;

typedef void *P;
static void call(void (*kernel)(void), int count, P *a) {
    switch (count) {
    case 1: ((void (*)(P))kernel)(a[0]); break;
    case 2: ((void (*)(P, P))kernel)(a[0], a[1]); break;
    case 3: ((void (*)(P, P, P))kernel)(a[0], a[1], a[2]); break;
    case 4: ((void (*)(P, P, P, P))kernel)(a[0], a[1], a[2], a[3]); break;
    case 5: ((void (*)(P, P, P, P, P))kernel)(a[0], a[1], a[2], a[3], a[4]); break;
    case 6: ((void (*)(P, P, P, P, P, P))kernel)(a[0], a[1], a[2], a[3], a[4], a[5]); break;
    case 7: ((void (*)(P, P, P, P, P, P, P))kernel)(a[0], a[1], a[2], a[3], a[4], a[5], a[6]); break;
    case 8: ((void (*)(P, P, P, P, P, P, P, P))kernel)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]); break;
    case 9: case 10: case 11: case 12: /* both common calling conventions ignore arguments the callee does not read */
        ((void (*)(P, P, P, P, P, P, P, P, P, P, P, P))kernel)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8],
                                                               a[9], a[10], a[11]);
        break;
    default:
        ((void (*)(P, P, P, P, P, P, P, P, P, P, P, P, P, P, P, P))kernel)(a[0], a[1], a[2], a[3], a[4], a[5], a[6],
                                                                           a[7], a[8], a[9], a[10], a[11], a[12],
                                                                           a[13], a[14], a[15]);
    }
}

Py_ssize_t program_inputs(const Program *self) { return self->inputs; }
Py_ssize_t program_outputs(const Program *self) { return self->outputs; }

static PyObject *hand_out(const Buffer *spec, Block *block) {
    DLTensor *tensor = &block->managed.tensor;
    tensor->ndim = spec->ndim;
    tensor->dtype = spec->dtype;
    memcpy(block->shape, spec->shape, sizeof(int64_t) * spec->ndim);
    memcpy(block->strides, spec->strides, sizeof(int64_t) * spec->ndim);
    void *object = NULL;
    if (exchange->import_managed(&block->managed, &object)) return NULL; /* the block has been taken over either way */
    return object;
}

PyObject *program_run(Program *self, void **addresses, PyObject *const *objects, bool as_tuple) {
    P address[MOST_SLOTS], argument[MOST_ARGUMENTS] = {0};
    Block *block[MOST_SLOTS];
    Py_ssize_t slots = self->inputs + self->buffers;
    memcpy(address, addresses, sizeof(P) * self->inputs);
    memset(block, 0, sizeof(Block *) * slots);
    PyObject *result = NULL;
    for (Py_ssize_t s = 0; s < self->steps; s++) {
        Step *step = &self->step[s];
        for (int k = 0; k < step->taken; k++) {
            int slot = step->takes[k];
            block[slot] = pool_take(self->buffer[slot - self->inputs].bytes);
            if (!block[slot]) {
                PyErr_NoMemory();
                goto done;
            }
            address[slot] = block[slot]->managed.tensor.data;
        }
        for (int k = 0; k < step->count; k++) argument[k] = address[step->arguments[k]];
        if (step->unlocked) {
            Py_BEGIN_ALLOW_THREADS
            call(step->kernel, step->count, argument);
            Py_END_ALLOW_THREADS
        } else {
            call(step->kernel, step->count, argument);
        }
        for (int k = 0; k < step->given; k++) {
            pool_give(block[step->gives[k]]);
            block[step->gives[k]] = NULL;
        }
    }
    if (self->outputs == 1 && !as_tuple) {
        int slot = self->output[0];
        if (slot < self->inputs) {
            result = Py_NewRef(objects[slot]);
        } else {
            result = hand_out(&self->buffer[slot - self->inputs], block[slot]);
            block[slot] = NULL;
        }
        goto done;
    }
    result = PyTuple_New(self->outputs);
    for (Py_ssize_t k = 0; result && k < self->outputs; k++) {
        int slot = self->output[k];
        PyObject *tensor;
        if (slot < self->inputs) {
            tensor = Py_NewRef(objects[slot]);
        } else {
            tensor = hand_out(&self->buffer[slot - self->inputs], block[slot]);
            block[slot] = NULL;
        }
        if (!tensor) {
            Py_CLEAR(result);
            break;
        }
        PyTuple_SET_ITEM(result, k, tensor);
    }
done:
    for (Py_ssize_t k = self->inputs; k < slots; k++)
        if (block[k]) pool_give(block[k]);
    return result;
}

static int read_buffer(PyObject *item, Buffer *buffer);

/* pool_empty(bytes, (type code, bits), shape, strides): an uninitialised tensor over memory of the pool, for results that a
   Python wrapper allocates. */
PyObject *pool_empty(PyObject *module, PyObject *args) {
    Buffer spec;
    if (read_buffer(args, &spec)) return NULL;
    Block *block = pool_take(spec.bytes);
    return block ? hand_out(&spec, block) : PyErr_NoMemory();
}

/* -- construction from Python -------------------------------------------------------------------------------------- */

static int slots_of(PyObject *sequence, Py_ssize_t least, Py_ssize_t most, int **slots, int *count) {
    PyObject *fast = PySequence_Fast(sequence, "slots must be a sequence");
    if (!fast) return -1;
    *count = (int)PySequence_Fast_GET_SIZE(fast);
    *slots = PyMem_Calloc(*count + 1, sizeof(int));
    for (int k = 0; *slots && k < *count; k++) {
        long slot = PyLong_AsLong(PySequence_Fast_GET_ITEM(fast, k));
        if (slot < least || slot >= most) {
            if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "there is no slot %ld here", slot);
            Py_DECREF(fast);
            return -1;
        }
        (*slots)[k] = (int)slot;
    }
    Py_DECREF(fast);
    return *slots ? 0 : (PyErr_NoMemory(), -1);
}

static int read_buffer(PyObject *item, Buffer *buffer) {
    Py_ssize_t bytes;
    int code, bits;
    PyObject *shape, *strides;
    if (!PyArg_ParseTuple(item, "n(ii)O!O!", &bytes, &code, &bits, &PyTuple_Type, &shape, &PyTuple_Type, &strides))
        return -1;
    Py_ssize_t rank = PyTuple_GET_SIZE(shape);
    if (rank > MOST_DIMENSIONS || PyTuple_GET_SIZE(strides) != rank || bytes < 0) {
        PyErr_SetString(PyExc_ValueError, "a buffer's shape and strides do not fit together");
        return -1;
    }
    buffer->bytes = (size_t)bytes;
    buffer->dtype = (DLDataType){(uint8_t)code, (uint8_t)bits, 1};
    buffer->ndim = (int32_t)rank;
    for (Py_ssize_t k = 0; k < rank; k++) {
        buffer->shape[k] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape, k));
        buffer->strides[k] = PyLong_AsLongLong(PyTuple_GET_ITEM(strides, k));
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int read_step(Program *self, PyObject *item, Step *step) {
    PyObject *arguments, *takes, *gives;
    Py_ssize_t slots = self->inputs + self->buffers;
    unsigned long long kernel;
    int unlocked, *picked = NULL;
    if (!PyArg_ParseTuple(item, "KOOOp", &kernel, &arguments, &takes, &gives, &unlocked)) return -1;
    step->kernel = (void (*)(void))(uintptr_t)kernel;
    step->unlocked = unlocked;
    if (slots_of(takes, self->inputs, slots, &step->takes, &step->taken) ||
        slots_of(gives, self->inputs, slots, &step->gives, &step->given) ||
        slots_of(arguments, 0, slots, &picked, &step->count)) {
        PyMem_Free(picked);
        return -1;
    }
    if (step->count < 1 || step->count > MOST_ARGUMENTS || !step->kernel) {
        PyErr_Format(PyExc_ValueError, "a kernel takes 1 to %d arguments here", MOST_ARGUMENTS);
        PyMem_Free(picked);
        return -1;
    }
    memcpy(step->arguments, picked, sizeof(int) * step->count);
    PyMem_Free(picked);
    return 0;
}

/* Program(inputs, buffers, steps, outputs, keep): buffers are (bytes, (DLPack type code, bits), shape, strides), steps
   (address of the kernel, argument slots, slots taken before, slots given back after, let other threads run). */
static PyObject *program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    Py_ssize_t inputs;
    PyObject *buffers, *steps, *outputs, *keep;
    if (!PyArg_ParseTuple(args, "nO!O!OO", &inputs, &PyTuple_Type, &buffers, &PyTuple_Type, &steps, &outputs, &keep))
        return NULL;
    if (inputs < 0 || inputs + PyTuple_GET_SIZE(buffers) > MOST_SLOTS)
        return PyErr_Format(PyExc_ValueError, "a program has at most %d slots", MOST_SLOTS);
    Program *self = (Program *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->inputs = inputs;
    self->buffers = PyTuple_GET_SIZE(buffers);
    self->keep = Py_NewRef(keep);
    self->buffer = PyMem_Calloc(self->buffers + 1, sizeof(Buffer));
    self->step = PyMem_Calloc(PyTuple_GET_SIZE(steps) + 1, sizeof(Step));
    if (!self->buffer || !self->step) {
        PyErr_NoMemory();
        goto failed;
    }
    for (Py_ssize_t k = 0; k < self->buffers; k++)
        if (read_buffer(PyTuple_GET_ITEM(buffers, k), &self->buffer[k])) goto failed;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(steps); k++) {
        self->steps = k + 1;
        if (read_step(self, PyTuple_GET_ITEM(steps, k), &self->step[k])) goto failed;
    }
    int count;
    if (slots_of(outputs, 0, self->inputs + self->buffers, &self->output, &count)) goto failed;
    self->outputs = count;
    return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

static int program_traverse(Program *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->keep);
    return 0;
}

static int program_clear(Program *self) {
    Py_CLEAR(self->keep);
    return 0;
}

static void program_dealloc(Program *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    program_clear(self);
    for (Py_ssize_t k = 0; self->step && k < self->steps; k++) {
        PyMem_Free(self->step[k].takes);
        PyMem_Free(self->step[k].gives);
    }
    PyMem_Free(self->step);
    PyMem_Free(self->buffer);
    PyMem_Free(self->output);
    type->tp_free(self);
    Py_DECREF(type);
}

/* program(inputs) -> tuple of results. The inputs' layouts are those the kernels were compiled for: nothing is checked. */
static PyObject *program_call(Program *self, PyObject *args, PyObject *kwargs) {
    PyObject *inputs;
    if (!PyArg_ParseTuple(args, "O", &inputs)) return NULL;
    PyObject *fast = PySequence_Fast(inputs, "the inputs are a list of tensors");
    if (!fast) return NULL;
    P address[MOST_SLOTS];
    PyObject *result = NULL;
    if (PySequence_Fast_GET_SIZE(fast) != self->inputs) {
        PyErr_Format(PyExc_ValueError, "%zd inputs expected, %zd given", self->inputs, PySequence_Fast_GET_SIZE(fast));
        goto done;
    }
    for (Py_ssize_t k = 0; k < self->inputs; k++) {
        PyObject *object = PySequence_Fast_GET_ITEM(fast, k);
        DLTensor tensor;
        if (!PyObject_TypeCheck(object, tensor_type)) {
            PyErr_Format(PyExc_TypeError, "input %zd is a %s, not a tensor", k, Py_TYPE(object)->tp_name);
            goto done;
        }
        if (exchange->view(object, &tensor)) goto done;
        address[k] = (char *)tensor.data + tensor.byte_offset;
    }
    result = program_run(self, address, PySequence_Fast_ITEMS(fast), true);
done:
    Py_DECREF(fast);
    return result;
}

static PyType_Slot program_slots[] = {
    {Py_tp_doc, "The kernels of a compiled region as a table: program(inputs) -> tuple of result tensors."},
    {Py_tp_new, program_new},
    {Py_tp_call, program_call},
    {Py_tp_traverse, program_traverse},
    {Py_tp_clear, program_clear},
    {Py_tp_dealloc, program_dealloc},
    {0, NULL},
};
PyType_Spec program_spec = {"staxlab.native._native.Program", sizeof(Program), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, program_slots};
