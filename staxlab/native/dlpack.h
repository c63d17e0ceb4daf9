/* DLPack as PyTorch speaks it: plain descriptions of tensors, and the table of functions that reads and makes tensors.

   No header of PyTorch is used. The layouts below are those of the specification of DLPack's C exchange API (version 1.3),
   https://dmlc.github.io/dlpack/latest/c_api.html; PyTorch publishes the table as `torch.Tensor.__dlpack_c_exchange_api__`. */

#ifndef STAXLAB_DLPACK_H
#define STAXLAB_DLPACK_H

#include <stdint.h>

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

enum { DEVICE_CPU = 1 };

#endif
