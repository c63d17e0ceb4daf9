/* The extension module: its functions, its types, and the connection to PyTorch. */

#include "program.h"

/* connect(torch.Tensor, torch.as_strided, what makes the error for lack of memory, table of ambient readers, forward_ad's
   dict): find PyTorch's DLPack functions on its tensor type. RuntimeError if this PyTorch has none of a version that is
   understood here. */
static PyObject *connect(PyObject *module, PyObject *args) {
    PyObject *tensor, *as_strided, *exhausted, *table, *level;
    if (!PyArg_ParseTuple(args, "OOOOO", &tensor, &as_strided, &exhausted, &table, &level)) return NULL;
    PyObject *capsule = PyObject_GetAttrString(tensor, "__dlpack_c_exchange_api__");
    if (!capsule) {
        PyErr_SetString(PyExc_RuntimeError, "this PyTorch does not publish DLPack's C exchange API");
        return NULL;
    }
    const Exchange *found = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_DECREF(capsule); /* the table itself lives as long as the process */
    while (found && found->version.major != 1) found = found->previous;
    if (!found || !found->view || !found->import_managed) {
        PyErr_SetString(PyExc_RuntimeError, "this PyTorch's DLPack exchange API is of another version");
        return NULL;
    }
    PyObject *line = PyObject_GetAttrString(module, "Line"); /* lives as long as the module */
    if (!line || connect_entry(line, table, level) || connect_tensors(as_strided, exhausted)) return NULL;
    tensor_type = (PyTypeObject *)Py_NewRef(tensor);
    exchange = found;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"connect", connect, METH_VARARGS, "Find PyTorch's DLPack functions."},
    {"ambient_shortcuts", ambient_shortcuts, METH_NOARGS, "What the shortcuts to the ambient state answer now."},
    {"counters", read_counters, METH_NOARGS, "What all programs have done: entries, kernels, operators, views."},
    {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "staxlab.native._native", "Calls and memory without the interpreter.", -1, functions,
};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (!module) return NULL;
    pool_start();
    program_type = (PyTypeObject *)PyType_FromSpec(&program_spec);
    PyObject *line = PyType_FromSpec(&line_spec), *entry = PyType_FromSpec(&entry_spec);
    if (!program_type || !line || !entry || PyModule_AddFunctions(module, pool_functions) ||
        PyModule_AddObjectRef(module, "Program", (PyObject *)program_type) ||
        PyModule_AddObjectRef(module, "Line", line) || PyModule_AddObjectRef(module, "Entry", entry) ||
        PyModule_AddIntConstant(module, "INTERFACE", INTERFACE)) {
        Py_DECREF(module);
        return NULL;
    }
    Py_DECREF(line);
    Py_DECREF(entry);
    return module;
}
