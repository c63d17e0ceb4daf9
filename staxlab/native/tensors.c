/* Memory of the pool as tensors, and what Python may ask of the pool. */

#include "native.h"

#include <string.h>

const Exchange *exchange;
PyTypeObject *tensor_type;

static PyObject *as_strided;  /* torch.as_strided */
static PyObject *exhausted;   /* bytes -> the exception to raise where no memory is left */
static PyObject *storage_offset_name, *data_ptr_name;

int read_layout(PyObject *item, Layout *layout) {
    Py_ssize_t bytes;
    int code, bits;
    PyObject *shape, *strides;
    if (!PyArg_ParseTuple(item, "n(ii)O!O!", &bytes, &code, &bits, &PyTuple_Type, &shape, &PyTuple_Type, &strides))
        return -1;
    Py_ssize_t rank = PyTuple_GET_SIZE(shape);
    if (PyTuple_GET_SIZE(strides) != rank || bytes < 0) {
        PyErr_SetString(PyExc_ValueError, "a buffer's shape and strides do not fit together");
        return -1;
    }
    layout->bytes = (size_t)bytes;
    layout->dtype = (DLDataType){(uint8_t)code, (uint8_t)bits, 1};
    layout->ndim = (int32_t)rank;
    layout->shape = PyMem_Calloc(2 * rank + 1, sizeof(int64_t));
    if (!layout->shape) return PyErr_NoMemory(), -1;
    layout->strides = layout->shape + rank;
    for (Py_ssize_t k = 0; k < rank; k++) {
        layout->shape[k] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape, k));
        layout->strides[k] = PyLong_AsLongLong(PyTuple_GET_ITEM(strides, k));
    }
    if (!PyErr_Occurred()) return 0;
    forget_layout(layout);
    return -1;
}

void forget_layout(Layout *layout) {
    PyMem_Free(layout->shape);
    layout->shape = layout->strides = NULL;
}

void raise_exhausted(size_t bytes) {
    PyObject *error = exhausted ? PyObject_CallFunction(exhausted, "n", (Py_ssize_t)bytes) : NULL;
    if (error) PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    else if (!PyErr_Occurred()) PyErr_NoMemory();
    Py_XDECREF(error);
}

Block *take_or_raise(size_t bytes) {
    Block *block = pool_take(bytes);
    if (!block) raise_exhausted(bytes);
    return block;
}

PyObject *tensor_over(Block *block, void *data, const Layout *layout) {
    DLManagedTensor *record = pool_describe(block, data, layout->dtype, layout->ndim, layout->shape, layout->strides);
    if (!record) return PyErr_NoMemory();
    void *object = NULL;
    if (exchange->import_managed(record, &object)) return NULL; /* it has been taken over either way */
    return object;
}

int address_of(PyObject *tensor, void **address) {
    DLTensor view;
    if (!exchange->view(tensor, &view)) {
        *address = (char *)view.data + view.byte_offset;
        return 0;
    }
    PyErr_Clear(); /* a tensor that DLPack has no words for still knows where it is */
    PyObject *number = PyObject_CallMethodNoArgs(tensor, data_ptr_name);
    if (!number) return -1;
    *address = PyLong_AsVoidPtr(number);
    Py_DECREF(number);
    return PyErr_Occurred() ? -1 : 0;
}

PyObject *view_of(PyObject *tensor, PyObject *shape, PyObject *strides, int64_t offset, bool foreign) {
    if (foreign) {
        PyObject *own = PyObject_CallMethodNoArgs(tensor, storage_offset_name);
        if (!own) return NULL;
        offset += PyLong_AsLongLong(own);
        Py_DECREF(own);
        if (PyErr_Occurred()) return NULL;
    }
    PyObject *number = PyLong_FromLongLong(offset);
    if (!number) return NULL;
    PyObject *arguments[] = {NULL, tensor, shape, strides, number};
    PyObject *view = PyObject_Vectorcall(as_strided, arguments + 1, 4 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    Py_DECREF(number);
    return view;
}

int connect_tensors(PyObject *strided, PyObject *error) {
    Py_XSETREF(as_strided, Py_NewRef(strided));
    Py_XSETREF(exhausted, Py_NewRef(error));
    storage_offset_name = PyUnicode_InternFromString("storage_offset");
    data_ptr_name = PyUnicode_InternFromString("data_ptr");
    return storage_offset_name && data_ptr_name ? 0 : -1;
}

/* -- the pool, for Python ----------------------------------------------------------------------------------------- */

/* pool_empty(bytes, (type code, bits), shape, strides): an uninitialised tensor over memory of the pool, for results that a
   Python wrapper allocates. */
static PyObject *pool_empty(PyObject *module, PyObject *args) {
    Layout layout = {0};
    if (!exchange) {
        PyErr_SetString(PyExc_RuntimeError, "not connected to PyTorch");
        return NULL;
    }
    if (read_layout(args, &layout)) return NULL;
    Block *block = take_or_raise(layout.bytes);
    PyObject *tensor = block ? tensor_over(block, block->memory, &layout) : NULL;
    forget_layout(&layout);
    return tensor;
}

static PyObject *statistics(PyObject *module, PyObject *unused) {
    PoolStatistics s = pool_read();
    const struct { const char *name; size_t number; } numbers[] = {
        {"lent_bytes", s.lent_bytes}, {"lent_blocks", s.lent_blocks}, {"resting_bytes", s.resting_bytes},
        {"resting_blocks", s.resting_blocks}, {"taken", s.hits + s.misses}, {"reused", s.hits},
        {"reused_bytes", s.hit_bytes}, {"system_bytes", s.system_bytes}, {"returned_bytes", s.returned_bytes},
        {"emptied", s.emptied}, {"peak_lent_bytes", s.peak_lent_bytes}, {"peak_held_bytes", s.peak_held_bytes},
        {"limit", s.limit},
    };
    PyObject *dict = PyDict_New();
    for (size_t k = 0; dict && k < sizeof numbers / sizeof *numbers; k++) {
        PyObject *number = PyLong_FromSize_t(numbers[k].number);
        if (!number || PyDict_SetItemString(dict, numbers[k].name, number)) Py_CLEAR(dict);
        Py_XDECREF(number);
    }
    return dict;
}

static PyObject *clear(PyObject *module, PyObject *unused) {
    Py_BEGIN_ALLOW_THREADS
    pool_shrink(0);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *restart_counts(PyObject *module, PyObject *unused) {
    pool_restart_counts();
    Py_RETURN_NONE;
}

static PyObject *set_limit(PyObject *module, PyObject *bytes) {
    Py_ssize_t value = (Py_ssize_t)pool_usual_limit();
    if (bytes != Py_None) value = PyLong_AsSsize_t(bytes);
    if (value == -1 && PyErr_Occurred()) return NULL;
    if (value < 0) {
        PyErr_SetString(PyExc_ValueError, "the pool's limit cannot be negative");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    pool_set_limit((size_t)value);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyMethodDef pool_functions[] = {
    {"pool_empty", pool_empty, METH_VARARGS, "An uninitialised tensor over memory of the pool."},
    {"pool_statistics", statistics, METH_NOARGS, "How the pool has been used, as a dict."},
    {"pool_restart_counts", restart_counts, METH_NOARGS, "Start peaks and sums anew."},
    {"pool_clear", clear, METH_NOARGS, "Return all memory at rest to the system."},
    {"pool_limit", set_limit, METH_O, "Set how many bytes may rest in the pool; None: what is usual."},
    {NULL},
};
