/* Shared by the parts of the extension that know the interpreter: memory as tensors, programs, and the call entry. */

#ifndef STAXLAB_NATIVE_H
#define STAXLAB_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#include "dlpack.h"
#include "pool.h"

/* Raised whenever Python and the extension must be of one make; `__init__.py` has the same number. */
enum { INTERFACE = 4 };

extern const Exchange *exchange;  /* set by `connect` */
extern PyTypeObject *tensor_type; /* torch.Tensor */

/* -- memory as tensors: tensors.c --------------------------------------------------------------------------------- */

/* What a tensor over memory of the pool looks like. */
typedef struct {
    size_t bytes;
    DLDataType dtype;
    int32_t ndim;
    int64_t *shape, *strides; /* one allocation of PyMem, at `shape`; strides in elements */
} Layout;

int read_layout(PyObject *item, Layout *layout); /* from (bytes, (type code, bits), shape, strides); -1 and an error */
void forget_layout(Layout *layout);

/* A tensor at `data` in a block; takes over a reference to the block. NULL and an error if that fails. */
PyObject *tensor_over(Block *block, void *data, const Layout *layout);
/* Where a tensor's first element is: 0, or -1 and an error. */
int address_of(PyObject *tensor, void **address);
/* torch.as_strided(tensor, shape, strides, offset), where the offset counts from the tensor's own first element if it
   is `foreign`, made elsewhere, else from the start of its storage. */
PyObject *view_of(PyObject *tensor, PyObject *shape, PyObject *strides, int64_t offset, bool foreign);
/* A block of so many bytes; NULL and the error that `connect` was given if there is no memory. */
Block *take_or_raise(size_t bytes);
void raise_exhausted(size_t bytes);

int connect_tensors(PyObject *as_strided, PyObject *exhausted);
extern PyMethodDef pool_functions[];

/* -- programs: table.c, program.c --------------------------------------------------------------------------------- */

typedef struct Program Program;
extern PyTypeObject *program_type;
extern PyType_Spec program_spec;

Py_ssize_t program_inputs(const Program *program), program_outputs(const Program *program);
/* The results for inputs at these addresses: the result itself if there is one, else a tuple. `objects` are the input
   tensors. */
PyObject *program_run(Program *program, void **addresses, PyObject *const *objects, bool as_tuple, PyObject **owned);

/* -- calls: ambient.c, line.c, entry.c ---------------------------------------------------------------------------- */

extern PyType_Spec line_spec, entry_spec;

enum { STATE_IN_KEY = 4 }; /* gradient mode, inference mode, default dtype, deterministic algorithms */

/* Whether the ambient state is the one a line was made under, and nothing around the call wants to see every operation. */
bool ambient_is(PyObject *const *state, const int64_t *quick_state);
void ambient_quick(int64_t *quick_state);
int ambient_autocast(void); /* whether autocast is on; -1 and an error */
PyObject *ambient_shortcuts(PyObject *module, PyObject *unused);
int connect_ambient(PyObject *table, PyObject *level);
int connect_entry(PyObject *line_type, PyObject *table, PyObject *level);

#endif
