/* Making a program from what Python has planned (staxlab/runtime/program.py), and the type itself. */

#include "program.h"

#include <stddef.h>
#include <string.h>
#include <structmember.h>

/* -- reading ------------------------------------------------------------------------------------------------------ */

static int read_values(PyObject *sequence, Py_ssize_t least, Py_ssize_t most, Values *values) {
    PyObject *fast = PySequence_Fast(sequence, "the numbers of values are a sequence");
    if (!fast) return -1;
    values->count = PySequence_Fast_GET_SIZE(fast);
    values->number = PyMem_Calloc(values->count + 1, sizeof(int));
    int outcome = values->number ? 0 : (PyErr_NoMemory(), -1);
    for (Py_ssize_t k = 0; !outcome && k < values->count; k++) {
        long number = PyLong_AsLong(PySequence_Fast_GET_ITEM(fast, k));
        if (number < least || number >= most) {
            if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "there is no value %ld here", number);
            outcome = -1;
        }
        values->number[k] = (int)number;
    }
    Py_DECREF(fast);
    return outcome;
}

/* (from, layout or None, offset, root, make or None) */
static int read_value_plan(Program *self, Py_ssize_t number, PyObject *item, ValuePlan *plan) {
    PyObject *layout, *make;
    Py_ssize_t offset;
    if (!PyArg_ParseTuple(item, "iOniO", &plan->from, &layout, &offset, &plan->root, &make)) return -1;
    plan->offset = (size_t)offset;
    bool is_memory = plan->from == OWN || plan->from == ARENA || plan->from == SHARED;
    if (is_memory && read_layout(layout, &plan->layout)) return -1;
    if (plan->from == MADE) plan->make = Py_NewRef(make);
    bool fits = plan->from != ARENA || (offset >= 0 && plan->offset + plan->layout.bytes <= self->arena);
    if (plan->from == SHARED) fits = plan->root >= 0 && plan->root < self->values && plan->root != number;
    if (plan->from >= OWN && plan->from <= DELIVERED && fits) return 0;
    PyErr_Format(PyExc_ValueError, "value %zd has no such memory", number);
    return -1;
}

/* (CONSTANT, object) | (TENSOR, value) | (VIEW, value, shape, strides, offset) | (SEQUENCE, as a list, parts) */
static int read_template(Program *self, PyObject *item, Template *template) {
    if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) < 2) {
        PyErr_SetString(PyExc_ValueError, "this is no template of an argument");
        return -1;
    }
    PyObject *object, *shape, *strides, *parts;
    int as_list;
    long long offset = 0;
    template->kind = (int)PyLong_AsLong(PyTuple_GET_ITEM(item, 0));
    switch (template->kind) {
    case CONSTANT:
        if (!PyArg_ParseTuple(item, "iO", &template->kind, &object)) return -1;
        template->object = Py_NewRef(object);
        return 0;
    case TENSOR:
        if (!PyArg_ParseTuple(item, "ii", &template->kind, &template->value)) return -1;
        break;
    case VIEW:
        if (!PyArg_ParseTuple(item, "iiO!O!L", &template->kind, &template->value, &PyTuple_Type, &shape, &PyTuple_Type,
                              &strides, &offset))
            return -1;
        template->shape = Py_NewRef(shape);
        template->strides = Py_NewRef(strides);
        template->offset = offset;
        break;
    case SEQUENCE:
        if (!PyArg_ParseTuple(item, "ipO!", &template->kind, &as_list, &PyTuple_Type, &parts)) return -1;
        template->as_list = as_list;
        template->parts = PyMem_Calloc(PyTuple_GET_SIZE(parts) + 1, sizeof(Template));
        if (!template->parts) return PyErr_NoMemory(), -1;
        for (; template->count < PyTuple_GET_SIZE(parts); template->count++)
            if (read_template(self, PyTuple_GET_ITEM(parts, template->count), &template->parts[template->count])) {
                template->count++; /* what has been read of it is let go with the rest */
                return -1;
            }
        return 0;
    default:
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "there is no such kind of template");
        return -1;
    }
    if (template->value >= 0 && template->value < self->values) return 0;
    PyErr_Format(PyExc_ValueError, "there is no value %d here", template->value);
    return -1;
}

static int read_templates(Program *self, PyObject *tuple, Template **templates, Py_ssize_t *count) {
    if (!PyTuple_Check(tuple)) {
        PyErr_SetString(PyExc_ValueError, "templates are a tuple");
        return -1;
    }
    *templates = PyMem_Calloc(PyTuple_GET_SIZE(tuple) + 1, sizeof(Template));
    if (!*templates) return PyErr_NoMemory(), -1;
    while (*count < PyTuple_GET_SIZE(tuple)) {
        int outcome = read_template(self, PyTuple_GET_ITEM(tuple, *count), &(*templates)[*count]);
        ++*count;
        if (outcome) return -1;
    }
    return 0;
}

/* (KERNEL, takes, gives, address, arguments, is long, report or None[, address for resident outputs, these]) */
static int read_kernel(Program *self, PyObject *item, Step *step) {
    PyObject *takes, *gives, *arguments, *report, *overwritten = NULL;
    unsigned long long kernel, past_caches = 0;
    int is_long;
    if (!PyArg_ParseTuple(item, "iOOKOpO|KO", &step->kind, &takes, &gives, &kernel, &arguments, &is_long, &report,
                          &past_caches, &overwritten))
        return -1;
    step->kernel = (void (*)(void))(uintptr_t)kernel;
    step->past_caches = (void (*)(void))(uintptr_t)past_caches;
    if (overwritten && read_values(overwritten, 0, self->values, &step->overwritten)) return -1;
    step->is_long = is_long;
    if (report != Py_None) step->report = Py_NewRef(report);
    if (read_values(arguments, 0, self->values, &step->arguments)) return -1;
    int room = launch_room(step->arguments.count);
    if (step->arguments.count < 1 || !room || !step->kernel) {
        PyErr_Format(PyExc_ValueError, "a kernel cannot take %zd arguments here", step->arguments.count);
        return -1;
    }
    if (room > self->room) self->room = room;
    return 0;
}

/* (OPERATOR, takes, gives, operator, templates, keywords or None, ((position, value, layout, shape, strides), ...)) */
static int read_operator(Program *self, PyObject *item, Step *step) {
    PyObject *takes, *gives, *operator, *templates, *names, *deliveries;
    if (!PyArg_ParseTuple(item, "iOOOOOO!", &step->kind, &takes, &gives, &operator, &templates, &names, &PyTuple_Type,
                          &deliveries))
        return -1;
    step->operator = Py_NewRef(operator);
    if (names != Py_None) step->names = Py_NewRef(names);
    if (read_templates(self, templates, &step->template, &step->templates)) return -1;
    if (step->names && (!PyTuple_Check(names) || PyTuple_GET_SIZE(names) > step->templates)) {
        PyErr_SetString(PyExc_ValueError, "there are more keywords than arguments");
        return -1;
    }
    step->delivery = PyMem_Calloc(PyTuple_GET_SIZE(deliveries) + 1, sizeof(Delivery));
    if (!step->delivery) return PyErr_NoMemory(), -1;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(deliveries); k++) {
        Delivery *delivery = &step->delivery[k];
        PyObject *layout, *shape, *strides;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(deliveries, k), "niOO!O!", &delivery->position, &delivery->value, &layout,
                              &PyTuple_Type, &shape, &PyTuple_Type, &strides) ||
            read_layout(layout, &delivery->layout))
            return -1;
        step->deliveries = k + 1;
        delivery->shape = Py_NewRef(shape);
        delivery->strides = Py_NewRef(strides);
        int place = delivery->value;
        if (place < self->inputs || place >= self->values || self->value[place - self->inputs].from != DELIVERED) {
            PyErr_Format(PyExc_ValueError, "an operator cannot deliver value %d", place);
            return -1;
        }
    }
    self->operators++;
    return 0;
}

static int read_step(Program *self, PyObject *item, Step *step) {
    if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) < 3) {
        PyErr_SetString(PyExc_ValueError, "this is no step of a program");
        return -1;
    }
    step->kind = (int)PyLong_AsLong(PyTuple_GET_ITEM(item, 0));
    if (read_values(PyTuple_GET_ITEM(item, 1), self->inputs, self->values, &step->takes) ||
        read_values(PyTuple_GET_ITEM(item, 2), 0, self->values, &step->gives))
        return -1;
    for (Py_ssize_t k = 0; k < step->takes.count; k++)
        if (self->value[step->takes.number[k] - self->inputs].from == DELIVERED) {
            PyErr_SetString(PyExc_ValueError, "what an operator delivers cannot be taken");
            return -1;
        }
    if (step->kind == KERNEL) return read_kernel(self, item, step);
    if (step->kind == OPERATOR) return read_operator(self, item, step);
    if (step->kind == NOTHING) return 0;
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "there is no such kind of step");
    return -1;
}

/* -- checking the order ------------------------------------------------------------------------------------------- */

/* Which values are there while the steps run: a mistake in a plan would show as a wrong number, or not at all. */
typedef struct {
    const Program *program;
    bool *there, has_arena;
} Order;

static int refuse(const Order *order, int number, const char *what) {
    PyErr_Format(PyExc_ValueError, "value %d is %s", number, what);
    return -1;
}

static int check_read(const Order *order, int number) {
    if (number < order->program->inputs) /* of an input it says that it was given back */
        return order->there[number] ? refuse(order, number, "read after it was given back") : 0;
    const ValuePlan *plan = &order->program->value[number - order->program->inputs];
    if (!order->there[number]) return refuse(order, number, "read where it is not there");
    if (plan->from == ARENA && !order->has_arena) return refuse(order, number, "read where there is no arena");
    return plan->from == SHARED ? check_read(order, plan->root) : 0;
}

static int check_templates(const Order *order, const Template *template, Py_ssize_t count) {
    for (Py_ssize_t k = 0; k < count; k++) {
        bool is_value = template[k].kind == TENSOR || template[k].kind == VIEW;
        if (is_value && check_read(order, template[k].value)) return -1;
        if (check_templates(order, template[k].parts, template[k].count)) return -1;
    }
    return 0;
}

static int check_step(Order *order, const Step *step) {
    const Program *self = order->program;
    order->has_arena |= step == self->arena_first;
    for (Py_ssize_t k = 0; k < step->takes.count; k++) {
        int number = step->takes.number[k];
        if (order->there[number]) return refuse(order, number, "taken while it is there");
        order->there[number] = true;
        if (check_read(order, number)) return -1; /* the arena, or the value it stands in */
    }
    for (Py_ssize_t k = 0; k < step->arguments.count; k++)
        if (check_read(order, step->arguments.number[k])) return -1;
    if (check_templates(order, step->template, step->templates)) return -1;
    for (Py_ssize_t k = 0; k < step->deliveries; k++) order->there[step->delivery[k].value] = true;
    for (Py_ssize_t k = 0; k < step->gives.count; k++) order->there[step->gives.number[k]] = step->gives.number[k] < self->inputs;
    order->has_arena &= step != self->arena_last;
    return 0;
}

static int check_order(const Program *self) {
    Order order = {self, PyMem_Calloc(self->values + 1, sizeof(bool)), false};
    if (!order.there) return PyErr_NoMemory(), -1;
    int outcome = 0;
    for (Py_ssize_t k = 0; !outcome && k < self->steps; k++) outcome = check_step(&order, &self->step[k]);
    if (!outcome) outcome = check_templates(&order, self->output, self->outputs);
    PyMem_Free(order.there);
    return outcome;
}

/* Marks where the interpreter's lock is released: from a long kernel to the last one before an operator or an allocation
   of PyTorch's. */
static void find_stretches(Program *self) {
    for (Py_ssize_t first = 0; first < self->steps; first++) {
        if (self->step[first].kind != KERNEL || !self->step[first].is_long) continue;
        Py_ssize_t end = first;
        for (bool free = true; end < self->steps; end++) {
            const Step *step = &self->step[end];
            for (Py_ssize_t k = 0; k < step->takes.count; k++)
                free &= self->value[step->takes.number[k] - self->inputs].from != MADE;
            if (!free || step->kind == OPERATOR) break;
        }
        if (end == first) continue;
        self->step[first].stretch = end - first;
        first = end - 1;
    }
}

/* Nothing shares the memory of what shares memory itself, and no value is larger than the one it stands in. */
static int check_shared(Program *self) {
    for (Py_ssize_t k = 0; k < self->values - self->inputs; k++) {
        const ValuePlan *plan = &self->value[k];
        if (plan->from != SHARED || plan->root < self->inputs) continue;
        const ValuePlan *root = &self->value[plan->root - self->inputs];
        bool is_memory = root->from == OWN || root->from == ARENA;
        if (root->from == SHARED || (is_memory && root->layout.bytes < plan->layout.bytes)) {
            PyErr_Format(PyExc_ValueError, "value %zd does not fit into value %d", self->inputs + k, plan->root);
            return -1;
        }
    }
    return 0;
}

/* Program(inputs, (arena bytes, first step, last step), values, steps, outputs, in_layout, keep): see the readers above for
   what each is. */
static PyObject *program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    Py_ssize_t inputs, arena, first, last;
    PyObject *values, *steps, *outputs, *in_layout, *keep;
    if (!PyArg_ParseTuple(args, "n(nnn)O!O!O!OO", &inputs, &arena, &first, &last, &PyTuple_Type, &values, &PyTuple_Type,
                          &steps, &PyTuple_Type, &outputs, &in_layout, &keep))
        return NULL;
    if (arena < 0 || (arena && (first < 0 || last < first || last >= PyTuple_GET_SIZE(steps))))
        return PyErr_Format(PyExc_ValueError, "there is no arena of %zd bytes from step %zd to %zd", arena, first, last);
    if (inputs < 0 || inputs + PyTuple_GET_SIZE(values) > INT32_MAX / 2)
        return PyErr_Format(PyExc_ValueError, "a program cannot have %zd inputs", inputs);
    Program *self = (Program *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->table = self;
    self->inputs = inputs;
    self->values = inputs + PyTuple_GET_SIZE(values);
    self->arena = (size_t)arena;
    self->in_layout = Py_NewRef(in_layout);
    self->keep = Py_NewRef(keep);
    self->value = PyMem_Calloc(PyTuple_GET_SIZE(values) + 1, sizeof(ValuePlan));
    self->step = PyMem_Calloc(PyTuple_GET_SIZE(steps) + 1, sizeof(Step));
    if (!self->value || !self->step) {
        PyErr_NoMemory();
        goto failed;
    }
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(values); k++)
        if (read_value_plan(self, inputs + k, PyTuple_GET_ITEM(values, k), &self->value[k])) goto failed;
    if (check_shared(self)) goto failed;
    if (arena) {
        self->arena_first = self->step + first;
        self->arena_last = self->step + last;
    }
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(steps); k++) {
        self->steps = k + 1;
        if (read_step(self, PyTuple_GET_ITEM(steps, k), &self->step[k])) goto failed;
    }
    if (read_templates(self, outputs, &self->output, &self->outputs) || check_order(self)) goto failed;
    find_stretches(self);
    return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

/* bound(constants, explain, counts, set_version, no_autocast): the same program with its last inputs given, and with what
   stands around a call of a region; each but the first may be None. */
static PyObject *program_bound(Program *self, PyObject *args) {
    PyObject *constants, *explain, *counts, *set_version, *no_autocast;
    if (!PyArg_ParseTuple(args, "O!OOOO", &PyTuple_Type, &constants, &explain, &counts, &set_version, &no_autocast))
        return NULL;
    Py_ssize_t given = self->table->inputs - PyTuple_GET_SIZE(constants);
    bool fits = given >= 0;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(constants); k++)
        fits &= PyObject_TypeCheck(PyTuple_GET_ITEM(constants, k), tensor_type);
    for (Py_ssize_t k = 0; fits && PyTuple_Check(counts) && k < PyTuple_GET_SIZE(counts); k++) {
        Py_ssize_t place, more;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(counts, k), "nn", &place, &more)) return NULL;
        fits &= place >= 0 && place < given;
    }
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "these are not constants and counts of the program");
        return NULL;
    }
    PyTypeObject *type = Py_TYPE(self);
    Program *bound = (Program *)type->tp_alloc(type, 0);
    if (!bound) return NULL;
    bound->table = (Program *)Py_NewRef(self->table);
    bound->constants = Py_NewRef(constants);
    if (explain != Py_None) bound->explain = Py_NewRef(explain);
    if (PyTuple_Check(counts)) bound->counts = Py_NewRef(counts);
    if (set_version != Py_None) bound->set_version = Py_NewRef(set_version);
    if (no_autocast != Py_None) bound->no_autocast = Py_NewRef(no_autocast);
    return (PyObject *)bound;
}

/* -- the type ----------------------------------------------------------------------------------------------------- */

static int visit_templates(const Template *template, Py_ssize_t count, visitproc visit, void *arg) {
    for (Py_ssize_t k = 0; template && k < count; k++) {
        Py_VISIT(template[k].object);
        Py_VISIT(template[k].shape);
        Py_VISIT(template[k].strides);
        int outcome = visit_templates(template[k].parts, template[k].count, visit, arg);
        if (outcome) return outcome;
    }
    return 0;
}

static void clear_templates(Template *template, Py_ssize_t count) {
    for (Py_ssize_t k = 0; template && k < count; k++) {
        Py_CLEAR(template[k].object);
        Py_CLEAR(template[k].shape);
        Py_CLEAR(template[k].strides);
        clear_templates(template[k].parts, template[k].count);
        PyMem_Free(template[k].parts);
        template[k].parts = NULL;
    }
}

static int program_traverse(Program *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    if (self->table != self) Py_VISIT(self->table);
    for (Py_ssize_t k = 0; self->value && k < self->values - self->inputs; k++) Py_VISIT(self->value[k].make);
    for (Py_ssize_t k = 0; k < self->steps; k++) {
        const Step *step = &self->step[k];
        Py_VISIT(step->report);
        Py_VISIT(step->operator);
        Py_VISIT(step->names);
        int outcome = visit_templates(step->template, step->templates, visit, arg);
        if (outcome) return outcome;
    }
    Py_VISIT(self->in_layout);
    Py_VISIT(self->keep);
    Py_VISIT(self->constants);
    Py_VISIT(self->explain);
    Py_VISIT(self->counts);
    Py_VISIT(self->set_version);
    Py_VISIT(self->no_autocast);
    return visit_templates(self->output, self->outputs, visit, arg);
}

/* A program that is part of a cycle is never called again once this is done. */
static int program_clear(Program *self) {
    Program *table = self->table == self ? NULL : self->table;
    self->table = self;
    Py_XDECREF(table);
    for (Py_ssize_t k = 0; k < self->steps; k++) {
        Step *step = &self->step[k];
        Py_CLEAR(step->report);
        Py_CLEAR(step->operator);
        Py_CLEAR(step->names);
        clear_templates(step->template, step->templates);
        step->templates = 0;
        PyMem_Free(step->template);
        step->template = NULL;
        for (Py_ssize_t j = 0; step->delivery && j < step->deliveries; j++) {
            Py_CLEAR(step->delivery[j].shape);
            Py_CLEAR(step->delivery[j].strides);
            forget_layout(&step->delivery[j].layout);
        }
        PyMem_Free(step->delivery);
        step->delivery = NULL;
        PyMem_Free(step->takes.number);
        PyMem_Free(step->gives.number);
        PyMem_Free(step->arguments.number);
        PyMem_Free(step->overwritten.number);
        step->takes = step->gives = step->arguments = (Values){NULL, 0};
    }
    self->steps = 0;
    clear_templates(self->output, self->outputs);
    PyMem_Free(self->output);
    self->output = NULL;
    self->outputs = 0;
    for (Py_ssize_t k = 0; self->value && k < self->values - self->inputs; k++) {
        Py_CLEAR(self->value[k].make);
        forget_layout(&self->value[k].layout);
    }
    PyMem_Free(self->value);
    self->value = NULL;
    self->values = self->inputs;
    PyMem_Free(self->step);
    self->step = NULL;
    Py_CLEAR(self->in_layout);
    Py_CLEAR(self->keep);
    Py_CLEAR(self->constants);
    Py_CLEAR(self->explain);
    Py_CLEAR(self->counts);
    Py_CLEAR(self->set_version);
    Py_CLEAR(self->no_autocast);
    return 0;
}

static void program_dealloc(Program *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    program_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *program_repr(Program *self) {
    const Program *table = self->table;
    return PyUnicode_FromFormat("<program: %zd inputs, %zd steps, %zd of them operators, %zd results, arena %zu bytes>",
                                program_inputs(self), table->steps, table->operators, table->outputs, table->arena);
}

static PyMethodDef program_methods[] = {
    {"bound", (PyCFunction)program_bound, METH_VARARGS,
     "bound(constants, explain, counts, set_version, no_autocast): a program that has its last inputs."},
    {NULL},
};
static PyMemberDef program_members[] = {
    {"calls", T_PYSSIZET, offsetof(Program, calls), READONLY, "How often it has been entered."},
    {NULL},
};
static PyType_Slot program_slots[] = {
    {Py_tp_doc, "A compiled region as a table: program(inputs) -> tuple of results."},
    {Py_tp_new, program_new}, {Py_tp_call, program_call}, {Py_tp_traverse, program_traverse},
    {Py_tp_clear, program_clear}, {Py_tp_dealloc, program_dealloc}, {Py_tp_repr, program_repr},
    {Py_tp_methods, program_methods}, {Py_tp_members, program_members}, {0, NULL},
};
PyType_Spec program_spec = {"staxlab.native._native.Program", sizeof(Program), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, program_slots};
