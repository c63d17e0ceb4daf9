/* Shared by the three parts of the extension: the memory pool, the program that runs kernels, and the call entry.

   No header of PyTorch is used. Tensors are read and made through the C exchange API of DLPack (version 1.3), a table of
   functions that PyTorch publishes as `torch.Tensor.__dlpack_c_exchange_api__`; its layout below is that of the
   specification, https://dmlc.github.io/dlpack/latest/c_api.html. */

#ifndef STAXLAB_NATIVE_H
#define STAXLAB_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

/* -- DLPack ------------------------------------------------------------------------------------------------------- */

typedef struct { int32_t type, id; } DLDevice;
typedef struct { uint8_t code, bits; uint16_t lanes; } DLDataType;
typedef struct { uint32_t major, minor; } DLVersion;

typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape, *strides; /* in elements */
    uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
    DLVersion version;
    void *context;
    void (*deleter)(struct DLManagedTensor *);
    uint64_t flags;
    DLTensor tensor;
} DLManagedTensor;

typedef struct Exchange {
    DLVersion version;
    struct Exchange *previous;
    int (*allocate)(DLTensor *, DLManagedTensor **, void *, void (*)(void *, const char *, const char *));
    int (*export_managed)(void *object, DLManagedTensor **out);
    int (*import_managed)(DLManagedTensor *tensor, void **out_object); /* takes over the tensor */
    int (*view)(void *object, DLTensor *out);                          /* borrows; no reference is kept */
    int (*current_stream)(int32_t device_type, int32_t device_id, void **out);
} Exchange;

/* Raised whenever Python and the extension must be of one make; `__init__.py` has the same number. */
enum { INTERFACE = 2 };

enum { DEVICE_CPU = 1, MOST_DIMENSIONS = 12 };

extern const Exchange *exchange;       /* set by `connect` */
extern PyTypeObject *tensor_type;      /* torch.Tensor */

/* -- the pool ----------------------------------------------------------------------------------------------------- */

/* A piece of memory together with the DLPack record that hands it to PyTorch, so that a result costs no allocation. */
typedef struct Block {
    DLManagedTensor managed; /* first: the deleter is given its address */
    int64_t shape[MOST_DIMENSIONS], strides[MOST_DIMENSIONS];
    size_t capacity; /* bytes */
    int size_class;
    struct Block *above, *below;  /* in the stack of its size class */
    struct Block *older, *newer;  /* among all blocks at rest */
} Block;

Block *pool_take(size_t bytes); /* NULL when memory is exhausted; needs no interpreter lock */
void pool_give(Block *block);   /* likewise */
PyObject *pool_empty(PyObject *module, PyObject *args);
PyObject *pool_statistics(PyObject *module, PyObject *unused);
PyObject *pool_clear(PyObject *module, PyObject *unused);
PyObject *pool_limit(PyObject *module, PyObject *bytes);
void pool_start(void);

/* -- programs ----------------------------------------------------------------------------------------------------- */

typedef struct Program Program;
extern PyTypeObject *program_type;

Py_ssize_t program_inputs(const Program *program), program_outputs(const Program *program);
/* The results for inputs at these addresses: the tensor itself if there is one, else a tuple. `objects` are the input
   tensors, returned where the program returns an input. */
PyObject *program_run(Program *program, void **addresses, PyObject *const *objects, bool as_tuple);

extern PyType_Spec program_spec, line_spec, entry_spec;

/* -- calls --------------------------------------------------------------------------------------------------------- */

enum { STATE_IN_KEY = 4 }; /* gradient mode, inference mode, default dtype, deterministic algorithms */

/* Whether the ambient state is the one a line was made under, and nothing around the call wants to see every operation. */
bool ambient_is(PyObject *const *state, const int64_t *quick_state);
void ambient_quick(int64_t *quick_state);
PyObject *ambient_shortcuts(PyObject *module, PyObject *unused);
int connect_ambient(PyObject *table, PyObject *level);
int connect_entry(PyObject *line_type, PyObject *table, PyObject *level);

#endif
