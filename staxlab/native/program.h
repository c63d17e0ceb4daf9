/* What a compiled region does, as a table: made by table.c, run by program.c.

   Values are numbered: first the inputs (those of a call, then constants the region holds), then what steps bring forth.
   A step of kernels takes memory for its values, calls one function with the addresses of some, and gives back what nobody
   reads afterwards; a step of PyTorch calls an operator with arguments filled into a template. */

#ifndef STAXLAB_PROGRAM_H
#define STAXLAB_PROGRAM_H

#include "native.h"

/* Where a value's memory comes from: a block of the pool, a place in the call's arena, the memory of another value, PyTorch's
   allocator, or an operator that delivers it (staxlab/schedule/memory_plan.py). */
enum { OWN, ARENA, SHARED, MADE, DELIVERED };

typedef struct {
    int from;
    Layout layout;    /* OWN, ARENA, SHARED */
    size_t offset;    /* ARENA: in bytes */
    int root;         /* SHARED: whose memory, for as long as that is held */
    PyObject *make;   /* MADE: a function without arguments */
} ValuePlan;

/* An argument of an operator or a result of the region, as a template. */
enum { CONSTANT, TENSOR, VIEW, SEQUENCE };

typedef struct Template {
    int kind;
    PyObject *object;           /* CONSTANT: itself */
    int value;                  /* TENSOR, VIEW */
    PyObject *shape, *strides;  /* VIEW */
    int64_t offset;
    bool as_list;               /* SEQUENCE: a list, else a tuple */
    struct Template *parts;
    Py_ssize_t count;
} Template;

typedef struct {
    int *number;
    Py_ssize_t count;
} Values;

/* A tensor that an operator delivers, and the layout that readers were compiled for. */
typedef struct {
    Py_ssize_t position;  /* in the operator's result; -1: it is the result */
    int value;            /* -1: nobody wants it */
    PyObject *shape, *strides;
    Layout layout;
} Delivery;

enum { KERNEL, OPERATOR, NOTHING };

typedef struct Step {
    int kind;
    Values takes, gives;
    Py_ssize_t stretch;    /* so many steps from this one on need no interpreter and are long: 0 if they do or are not */
    /* KERNEL */
    void (*kernel)(void);
    void (*past_caches)(void); /* the same for outputs whose pages are there; NULL if there is no other */
    Values overwritten;        /* whose pages decide */
    Values arguments;
    bool is_long;
    PyObject *report;      /* number of the failure -> raises; NULL if the kernel reports none */
    /* OPERATOR */
    PyObject *operator, *names;  /* keywords, or NULL */
    Template *template;
    Py_ssize_t templates;
    Delivery *delivery;
    Py_ssize_t deliveries;
} Step;

struct Program {
    PyObject_HEAD
    struct Program *table;  /* whose steps these are: a program that was bound to constants shares those of another */
    Py_ssize_t inputs, values, steps, outputs, operators;
    size_t arena;           /* bytes */
    struct Step *arena_first, *arena_last; /* the first step that needs it, the last one; NULL without an arena */
    int room;               /* for the arguments of any kernel */
    ValuePlan *value;       /* of the values after the inputs */
    Step *step;
    Template *output;
    PyObject *in_layout;    /* (tensor, shape, strides) -> the tensor in that layout, or an error */
    PyObject *keep;         /* what the kernels' addresses depend on: the loaded libraries */
    /* of a program that was bound */
    PyObject *constants;    /* the last inputs; a tuple, or NULL */
    PyObject *explain;      /* (error, inputs) -> a better error, or None; or NULL */
    PyObject *counts, *set_version; /* ((input, how many writes more its version shall count), ...); PyTorch's function */
    PyObject *no_autocast;  /* a context in which operators run */
    Py_ssize_t calls;
};

/* What has happened in all programs together. */
typedef struct { Py_ssize_t entries, kernels, operators, views; } Counters;
extern Counters counters;
PyObject *read_counters(PyObject *module, PyObject *unused);

int launch_room(Py_ssize_t count); /* the length of the array that `launch` reads; 0: so many cannot be passed */
int64_t launch(void (*kernel)(void), Py_ssize_t count, void *const *arguments);

PyObject *program_call(Program *self, PyObject *args, PyObject *kwargs);

#endif
