/* Calling a kernel with a number of pointers that is known at run time only.

   Both common calling conventions (System V on x86-64, AAPCS64) leave the arguments to the caller, so a function that takes
   fewer than it is given does not notice: counts are rounded up to those below. Every kernel is called as if it returned a
   number, which is read only where it does. */

#include "program.h"

typedef void *P;
typedef int64_t R;

#define P4 P, P, P, P
#define P16 P4, P4, P4, P4
#define P64 P16, P16, P16, P16
#define P256 P64, P64, P64, P64
#define A4(k) a[k], a[(k) + 1], a[(k) + 2], a[(k) + 3]
#define A16(k) A4(k), A4((k) + 4), A4((k) + 8), A4((k) + 12)
#define A64(k) A16(k), A16((k) + 16), A16((k) + 32), A16((k) + 48)
#define A256(k) A64(k), A64((k) + 64), A64((k) + 128), A64((k) + 192)

static const int rounded[] = {8, 12, 16, 32, 64, 128, 256, 512, 1024};

int launch_room(Py_ssize_t count) {
    for (size_t k = 0; k < sizeof rounded / sizeof *rounded; k++)
        if (count <= rounded[k]) return rounded[k];
    return 0;
}

int64_t launch(void (*kernel)(void), Py_ssize_t count, void *const *a) {
    switch (count) {
    case 1: return ((R (*)(P))kernel)(a[0]);
    case 2: return ((R (*)(P, P))kernel)(a[0], a[1]);
    case 3: return ((R (*)(P, P, P))kernel)(a[0], a[1], a[2]);
    case 4: return ((R (*)(P4))kernel)(A4(0));
    case 5: return ((R (*)(P4, P))kernel)(A4(0), a[4]);
    case 6: return ((R (*)(P4, P, P))kernel)(A4(0), a[4], a[5]);
    case 7: return ((R (*)(P4, P, P, P))kernel)(A4(0), a[4], a[5], a[6]);
    case 8: return ((R (*)(P4, P4))kernel)(A4(0), A4(4));
    }
    if (count <= 12) return ((R (*)(P4, P4, P4))kernel)(A4(0), A4(4), A4(8));
    if (count <= 16) return ((R (*)(P16))kernel)(A16(0));
    if (count <= 32) return ((R (*)(P16, P16))kernel)(A16(0), A16(16));
    if (count <= 64) return ((R (*)(P64))kernel)(A64(0));
    if (count <= 128) return ((R (*)(P64, P64))kernel)(A64(0), A64(64));
    if (count <= 256) return ((R (*)(P256))kernel)(A256(0));
    if (count <= 512) return ((R (*)(P256, P256))kernel)(A256(0), A256(256));
    return ((R (*)(P256, P256, P256, P256))kernel)(A256(0), A256(256), A256(512), A256(768));
}
