/* What a compiled version expects of a call, and what to run: made by line.c, looked at by entry.c. */

#ifndef STAXLAB_LINE_H
#define STAXLAB_LINE_H

#include "native.h"

typedef struct {
    PyTypeObject *type;
    PyObject *value;      /* an argument that is no tensor; NULL for a tensor */
    bool requires_grad;
    DLDevice device;
    DLDataType dtype;
    int32_t ndim;
    int64_t *metadata;    /* shape, then strides */
    size_t extent;        /* bytes from the first element to past the last; 0 if there is none */
} Expected;

/* Where a free variable lives, and what must be found there if it is no tensor (Section 2.5). */
enum { ITEM, CELL, ATTRIBUTE, LENGTH, KEYS };
typedef struct {
    long how;
    PyObject *holder, *key, *found;
} Place;

typedef struct {
    PyObject_HEAD
    Py_ssize_t arguments, free, tensors; /* flat tensors: lifted ones first, then those among the arguments */
    Expected *argument, *lifted;
    PyObject *state[STATE_IN_KEY]; /* as the readers answer, and as the shortcuts do */
    int64_t quick_state[STATE_IN_KEY];
    Place *lifted_place, *place;   /* of the lifted tensors; of the other free values */
    Py_ssize_t places;
    Py_ssize_t watched;            /* free tensors the key knows and the graph does not use: looked at, not passed on */
    Expected *watch;
    Place *watched_place;
    PyObject *replay, *gates;      /* flat list -> answers of the data gates, and the answers that lead here; or NULL */
    PyObject *run;                 /* a Program, or a function from the flat list to the flat results */
    PyObject *rebuild;             /* flat results -> return value; None where it is the one result itself */
    uintptr_t *seen;               /* addresses found not to overlap, those of watched tensors last */
    Py_ssize_t calls;
} Line;

extern PyTypeObject *line_type;
extern PyObject *requires_grad_name, *is_neg_name;

#endif
