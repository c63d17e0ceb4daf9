/* Running a program: one entry per call, however many kernels and operators the region has (Sections 8.5 and 11.3).

   The interpreter is needed only where an operator of PyTorch is called or a tensor is made. Steps between those that take
   long run with its lock released once for all of them. Whatever fails, every value that is held is given back. */

#include "program.h"

#include <string.h>

enum { INSIDE_VALUES = 64, INSIDE_ARGUMENTS = 32, INSIDE_TEMPLATES = 16 };
enum { CACHE_LINE = 64 }; /* bytes; no vector is wider */

Counters counters;
PyTypeObject *program_type;

/* A value during a call. Kernels need its address. The tensor is made when somebody asks for it, and takes over the
   reference to the block; `home` is the block all the same. Inputs are borrowed from the caller. */
typedef struct {
    void *address;
    Block *block, *home;
    PyObject *tensor;
} Value;

typedef struct {
    const Program *table;
    Value *value;
    void **argument;
    Block *arena;
    PyObject **owned; /* the inputs, where the call may let go of them */
    Py_ssize_t given;
    size_t lacking; /* bytes that could not be had */
} Run;

static inline const ValuePlan *plan_of(const Run *run, int number) {
    return &run->table->value[number - run->table->inputs];
}

static inline void let_go(Value *value) {
    if (value->block) {
        pool_give(value->block);
        value->block = NULL;
    }
    Py_CLEAR(value->tensor);
}

/* -- tensors of values -------------------------------------------------------------------------------------------- */

/* Whether a tensor has this layout, and then its address. */
static bool is_laid_out(PyObject *tensor, const Layout *layout, void **address) {
    DLTensor seen;
    if (!PyObject_TypeCheck(tensor, tensor_type)) return false;
    if (exchange->view(tensor, &seen)) {
        PyErr_Clear();
        return false;
    }
    size_t half = sizeof(int64_t) * (size_t)layout->ndim;
    *address = (char *)seen.data + seen.byte_offset;
    return seen.ndim == layout->ndim &&
           (!half || (!memcmp(seen.shape, layout->shape, half) && !memcmp(seen.strides, layout->strides, half)));
}

static PyObject *numbers(const int64_t *number, int32_t count) {
    PyObject *tuple = PyTuple_New(count);
    for (int32_t k = 0; tuple && k < count; k++) {
        PyObject *item = PyLong_FromLongLong(number[k]);
        if (item) PyTuple_SET_ITEM(tuple, k, item);
        else Py_CLEAR(tuple);
    }
    return tuple;
}

/* Whether a tensor may begin elsewhere than its storage does. */
static bool is_foreign(const Run *run, int number) {
    if (number < run->table->inputs) return true;
    const ValuePlan *plan = plan_of(run, number);
    return plan->from == SHARED ? is_foreign(run, plan->root) : plan->from == DELIVERED;
}

/* The tensor of a value, borrowed. One that shares the memory of a tensor made elsewhere is that tensor, or a view. */
static PyObject *tensor_of(Run *run, int number) {
    Value *value = &run->value[number];
    if (value->tensor) return value->tensor;
    const ValuePlan *plan = number < run->table->inputs ? NULL : plan_of(run, number);
    if (plan && value->home) {
        if (!value->block) pool_keep(value->home); /* it is held by the call, or by the value whose memory it is */
        value->block = NULL;
        return value->tensor = tensor_over(value->home, value->address, &plan->layout);
    }
    PyObject *root = plan && plan->from == SHARED ? tensor_of(run, plan->root) : NULL;
    if (root) {
        void *address;
        if (is_laid_out(root, &plan->layout, &address)) return value->tensor = Py_NewRef(root);
        PyObject *shape = numbers(plan->layout.shape, plan->layout.ndim);
        PyObject *strides = numbers(plan->layout.strides, plan->layout.ndim);
        if (shape && strides) value->tensor = view_of(root, shape, strides, 0, is_foreign(run, plan->root));
        Py_XDECREF(shape);
        Py_XDECREF(strides);
    } else if (!PyErr_Occurred()) {
        PyErr_Format(PyExc_SystemError, "value %d of a program is read before it is there", number);
    }
    return value->tensor;
}

/* A new reference to what a template describes. */
static PyObject *filled(Run *run, const Template *template) {
    PyObject *tensor;
    switch (template->kind) {
    case CONSTANT: return Py_NewRef(template->object);
    case TENSOR: return Py_XNewRef(tensor_of(run, template->value));
    case VIEW:
        tensor = tensor_of(run, template->value);
        if (!tensor) return NULL;
        counters.views++;
        return view_of(tensor, template->shape, template->strides, template->offset,
                       is_foreign(run, template->value));
    default:;
        PyObject *sequence = template->as_list ? PyList_New(template->count) : PyTuple_New(template->count);
        for (Py_ssize_t k = 0; sequence && k < template->count; k++) {
            PyObject *part = filled(run, &template->parts[k]);
            if (!part) Py_CLEAR(sequence);
            else if (template->as_list) PyList_SET_ITEM(sequence, k, part);
            else PyTuple_SET_ITEM(sequence, k, part);
        }
        return sequence;
    }
}

/* -- operators ---------------------------------------------------------------------------------------------------- */

/* Puts a tensor of an operator, or a copy in the layout that readers were compiled for, in its place; takes over `tensor`. */
static int deliver(Run *run, const Delivery *delivery, PyObject *tensor) {
    Value *value = &run->value[delivery->value];
    let_go(value);
    if (!is_laid_out(tensor, &delivery->layout, &value->address)) { /* perhaps only where it does not matter */
        PyObject *copy = PyObject_CallFunctionObjArgs(run->table->in_layout, tensor, delivery->shape, delivery->strides,
                                                      NULL);
        Py_SETREF(tensor, copy);
        if (!tensor || address_of(tensor, &value->address)) {
            Py_XDECREF(tensor);
            return -1;
        }
    }
    value->tensor = tensor;
    return 0;
}

static int call_operator(Run *run, const Step *step) {
    PyObject *inside[INSIDE_TEMPLATES + 1] = {NULL}, **argument = inside, *result = NULL;
    if (step->templates > INSIDE_TEMPLATES && !(argument = PyMem_Calloc(step->templates + 1, sizeof *argument)))
        return PyErr_NoMemory(), -1;
    Py_ssize_t filled_in = 0, named = step->names ? PyTuple_GET_SIZE(step->names) : 0;
    while (filled_in < step->templates && (argument[filled_in + 1] = filled(run, &step->template[filled_in]))) filled_in++;
    if (filled_in == step->templates) {
        counters.operators++;
        size_t positional = (size_t)(step->templates - named) | PY_VECTORCALL_ARGUMENTS_OFFSET;
        result = PyObject_Vectorcall(step->operator, argument + 1, positional, step->names);
    }
    for (Py_ssize_t k = 1; k <= filled_in; k++) Py_DECREF(argument[k]);
    if (argument != inside) PyMem_Free(argument);
    int outcome = result ? 0 : -1;
    for (Py_ssize_t k = 0; !outcome && k < step->deliveries; k++) {
        const Delivery *delivery = &step->delivery[k];
        PyObject *tensor = delivery->position < 0 ? Py_NewRef(result) : PySequence_GetItem(result, delivery->position);
        outcome = tensor ? deliver(run, delivery, tensor) : -1;
    }
    Py_XDECREF(result);
    return outcome;
}

/* -- kernels ------------------------------------------------------------------------------------------------------ */

/* Memory for the values of a step. Only what PyTorch allocates needs the interpreter, and fails with an error of its own;
   else what is lacking is noted. */
static int take(Run *run, const Step *step) {
    if (step == run->table->arena_first && !(run->arena = pool_take(run->table->arena))) {
        run->lacking = run->table->arena;
        return -1;
    }
    for (Py_ssize_t k = 0; k < step->takes.count; k++) {
        int number = step->takes.number[k];
        const ValuePlan *plan = plan_of(run, number);
        Value *value = &run->value[number];
        switch (plan->from) {
        case OWN:
            value->block = pool_take(plan->layout.bytes);
            if (!value->block) {
                run->lacking = plan->layout.bytes;
                return -1;
            }
            value->home = value->block;
            value->address = value->block->memory;
            break;
        case ARENA:
            value->home = run->arena;
            value->address = (char *)run->arena->memory + plan->offset;
            break;
        case SHARED: {
            const Value *root = &run->value[plan->root];
            value->home = root->home;
            value->address = root->address;
            break;
        }
        case MADE:
            value->tensor = PyObject_CallNoArgs(plan->make);
            if (!value->tensor || address_of(value->tensor, &value->address)) return -1;
            break;
        }
    }
    return 0;
}

/* Whether the pages of a value's memory are there already, and its vectors begin with cache lines. What the caller or an
   operator made has been written before, or will be when the call is repeated. */
static bool is_resident(const Run *run, int number) {
    const Value *value = &run->value[number];
    if ((uintptr_t)value->address % CACHE_LINE) return false;
    if (value->home) return value->home->resident;
    const ValuePlan *plan = number < run->table->inputs ? NULL : plan_of(run, number);
    return !plan || plan->from == DELIVERED || (plan->from == SHARED && is_resident(run, plan->root));
}

static inline int64_t run_kernel(Run *run, const Step *step) {
    for (Py_ssize_t k = 0; k < step->arguments.count; k++)
        run->argument[k] = run->value[step->arguments.number[k]].address;
    void (*kernel)(void) = step->past_caches ? step->past_caches : step->kernel;
    for (Py_ssize_t k = 0; step->past_caches && k < step->overwritten.count; k++)
        if (!is_resident(run, step->overwritten.number[k])) kernel = step->kernel;
    return launch(kernel, step->arguments.count, run->argument);
}

/* What a step gives back. Tensors need the interpreter and stay for later where it is not `held`. */
static inline void give(Run *run, const Step *step, bool held) {
    if (step == run->table->arena_last && run->arena) {
        pool_give(run->arena);
        run->arena = NULL;
    }
    for (Py_ssize_t k = 0; k < step->gives.count; k++) {
        int number = step->gives.number[k];
        Value *value = &run->value[number];
        if (number < run->table->inputs) { /* only of a program that owns its inputs; constants stay */
            if (held && run->owned && number < run->given) {
                PyObject *input = run->owned[number];
                run->owned[number] = Py_NewRef(Py_None);
                value->tensor = NULL;
                Py_DECREF(input);
            }
        } else if (held) {
            let_go(value);
        } else if (value->block) {
            pool_give(value->block);
            value->block = NULL;
        }
    }
}

static int fail(Run *run, const Step *step, int64_t failure) {
    if (run->lacking) {
        raise_exhausted(run->lacking);
    } else if (failure) {
        PyObject *number = PyLong_FromLongLong(failure);
        PyObject *nothing = number ? PyObject_CallOneArg(step->report, number) : NULL;
        Py_XDECREF(number);
        Py_XDECREF(nothing);
        if (nothing) PyErr_SetString(PyExc_SystemError, "a kernel's failure was not reported");
    } else if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_SystemError, "a step failed without a reason");
    }
    return -1;
}

/* One step while holding the interpreter's lock. */
static int run_step(Run *run, const Step *step) {
    int64_t failure = 0;
    if (take(run, step)) return fail(run, step, 0);
    if (step->kind == KERNEL) {
        counters.kernels++;
        if (step->is_long) {
            Py_BEGIN_ALLOW_THREADS
            failure = run_kernel(run, step);
            Py_END_ALLOW_THREADS
        } else {
            failure = run_kernel(run, step);
        }
        if (step->report && failure) return fail(run, step, failure);
    } else if (step->kind == OPERATOR && call_operator(run, step)) {
        return -1;
    }
    give(run, step, true);
    return 0;
}

/* Some steps in a row, with the lock released. */
static int run_stretch(Run *run, const Step *step, Py_ssize_t count) {
    int64_t failure = 0;
    Py_ssize_t k = 0, kernels = 0;
    Py_BEGIN_ALLOW_THREADS
    for (; k < count; k++) {
        if (take(run, &step[k])) break;
        if (step[k].kind == KERNEL) {
            kernels++;
            failure = run_kernel(run, &step[k]);
            if (!step[k].report) failure = 0;
            if (failure) break;
        }
        give(run, &step[k], false);
    }
    Py_END_ALLOW_THREADS
    counters.kernels += kernels;
    if (k < count) return fail(run, &step[k], failure);
    for (k = 0; k < count; k++) give(run, &step[k], true);
    return PyErr_CheckSignals(); /* as the interpreter would between two lines */
}

/* -- a call ------------------------------------------------------------------------------------------------------- */

Py_ssize_t program_inputs(const Program *self) {
    return self->table->inputs - (self->constants ? PyTuple_GET_SIZE(self->constants) : 0);
}
Py_ssize_t program_outputs(const Program *self) { return self->table->outputs; }

static PyObject *results(Run *run, bool as_tuple) {
    const Program *table = run->table;
    if (table->outputs == 1 && !as_tuple) return filled(run, &table->output[0]);
    PyObject *tuple = PyTuple_New(table->outputs);
    for (Py_ssize_t k = 0; tuple && k < table->outputs; k++) {
        PyObject *result = filled(run, &table->output[k]);
        if (result) PyTuple_SET_ITEM(tuple, k, result);
        else Py_CLEAR(tuple);
    }
    return tuple;
}

/* Raise the version counters of inputs as eager execution would have (Section 4.9). */
static int count_writes(const Program *self, PyObject *const *objects) {
    for (Py_ssize_t k = 0; self->counts && k < PyTuple_GET_SIZE(self->counts); k++) {
        Py_ssize_t place, more;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(self->counts, k), "nn", &place, &more)) return -1;
        PyObject *without = PyObject_CallMethod(objects[place], "is_inference", NULL); /* those have no counter */
        if (!without) return -1;
        Py_DECREF(without);
        if (without == Py_True) continue;
        PyObject *version = PyObject_GetAttrString(objects[place], "_version");
        if (!version) return -1;
        Py_ssize_t reached = PyLong_AsSsize_t(version) + more;
        Py_DECREF(version);
        PyObject *done = PyErr_Occurred() ? NULL
                                          : PyObject_CallFunction(self->set_version, "(O)(n)", objects[place], reached);
        if (!done) return -1;
        Py_DECREF(done);
    }
    return 0;
}

/* Put a better error, if there is one, in the place of the one that is set. */
static void explain(const Program *self, PyObject *const *objects) {
    if (!self->explain || !(PyErr_ExceptionMatches(PyExc_IndexError) || PyErr_ExceptionMatches(PyExc_RuntimeError)))
        return;
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback) PyException_SetTraceback(error, traceback);
    Py_ssize_t count = program_inputs(self);
    PyObject *inputs = PyList_New(count), *better = NULL;
    for (Py_ssize_t k = 0; inputs && k < count; k++) PyList_SET_ITEM(inputs, k, Py_NewRef(objects[k]));
    if (inputs) better = PyObject_CallFunctionObjArgs(self->explain, error, inputs, NULL);
    Py_XDECREF(inputs);
    if (better && better != Py_None) {
        PyException_SetCause(better, Py_NewRef(error));
        PyException_SetContext(better, Py_NewRef(error));
        PyErr_SetObject((PyObject *)Py_TYPE(better), better);
        Py_DECREF(type);
        Py_DECREF(error);
        Py_XDECREF(traceback);
    } else if (better) {
        PyErr_Restore(type, error, traceback);
    } else { /* the explanation failed: that is an error of its own */
        Py_DECREF(type);
        Py_DECREF(error);
        Py_XDECREF(traceback);
    }
    Py_XDECREF(better);
}

PyObject *program_run(Program *self, void **addresses, PyObject *const *objects, bool as_tuple, PyObject **owned) {
    const Program *table = self->table;
    Value inside_values[INSIDE_VALUES];
    void *inside_arguments[INSIDE_ARGUMENTS];
    Py_ssize_t given = program_inputs(self);
    Run run = {.table = table, .value = inside_values, .argument = inside_arguments, .owned = owned, .given = given};
    bool many_values = table->values > INSIDE_VALUES, many_arguments = table->room > INSIDE_ARGUMENTS;
    if (many_values) run.value = PyMem_Malloc(sizeof(Value) * (size_t)table->values);
    if (many_arguments) run.argument = PyMem_Malloc(sizeof(void *) * (size_t)table->room);
    PyObject *result = NULL;
    if (!run.value || !run.argument) {
        PyErr_NoMemory();
        goto unheld;
    }
    memset(run.argument, 0, sizeof(void *) * (size_t)table->room);
    memset(run.value, 0, sizeof(Value) * (size_t)table->values);
    counters.entries++;
    self->calls++;
    for (Py_ssize_t k = 0; k < given; k++) {
        run.value[k].address = addresses[k];
        run.value[k].tensor = objects[k];
    }
    for (Py_ssize_t k = given; k < table->inputs; k++) {
        run.value[k].tensor = PyTuple_GET_ITEM(self->constants, k - given);
        if (address_of(run.value[k].tensor, &run.value[k].address)) goto done;
    }
    for (Py_ssize_t s = 0; s < table->steps;) {
        const Step *step = &table->step[s];
        if (step->stretch ? run_stretch(&run, step, step->stretch) : run_step(&run, step)) goto done;
        s += step->stretch ? step->stretch : 1;
    }
    result = results(&run, as_tuple);
    if (result && self->counts && count_writes(self, objects)) Py_CLEAR(result);
done:
    if (!result) explain(self, objects);
    for (Py_ssize_t k = table->inputs; k < table->values; k++) {
        Value *value = &run.value[k];
        if (value->block) pool_give(value->block);
        Py_XDECREF(value->tensor);
    }
    if (run.arena) pool_give(run.arena);
unheld:
    if (many_values) PyMem_Free(run.value);
    if (many_arguments) PyMem_Free(run.argument);
    return result;
}

/* program(inputs), for callers that know nothing of autocast: a graph of operators has autocast's casts among its nodes. */
static PyObject *call_outside_autocast(Program *self, void **addresses, PyObject **objects) {
    int is_on = self->no_autocast && self->table->operators ? ambient_autocast() : 0;
    if (is_on < 0) return NULL;
    if (!is_on) return program_run(self, addresses, objects, true, objects);
    PyObject *guard = PyObject_CallNoArgs(self->no_autocast);
    PyObject *entered = guard ? PyObject_CallMethod(guard, "__enter__", NULL) : NULL;
    PyObject *result = entered ? program_run(self, addresses, objects, true, objects) : NULL;
    if (entered) {
        PyObject *type, *error, *traceback;
        PyErr_Fetch(&type, &error, &traceback);
        PyObject *left = PyObject_CallMethod(guard, "__exit__", "OOO", Py_None, Py_None, Py_None);
        if (!left) Py_CLEAR(result);
        if (type) PyErr_Restore(type, error, traceback);
        Py_XDECREF(left);
    }
    Py_XDECREF(entered);
    Py_XDECREF(guard);
    return result;
}

/* program(inputs) -> tuple of results. The inputs' layouts are those the kernels were compiled for: nothing is checked. */
PyObject *program_call(Program *self, PyObject *args, PyObject *kwargs) {
    PyObject *inputs, *result = NULL;
    if (!PyArg_ParseTuple(args, "O", &inputs)) return NULL;
    PyObject *fast = PySequence_Fast(inputs, "the inputs are a list of tensors");
    if (!fast) return NULL;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(fast);
    void *inside[INSIDE_VALUES], **address = inside;
    /* The caller's list may change while operators run; what is in it now stays alive. */
    PyObject *held = PySequence_Tuple(fast);
    Py_DECREF(fast);
    if (!held) return NULL;
    if (count != program_inputs(self)) {
        PyErr_Format(PyExc_ValueError, "%zd inputs expected, %zd given", program_inputs(self), count);
        goto done;
    }
    if (count > INSIDE_VALUES && !(address = PyMem_Malloc(sizeof(void *) * (size_t)count))) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t k = 0; k < count; k++) {
        PyObject *object = PyTuple_GET_ITEM(held, k);
        if (!PyObject_TypeCheck(object, tensor_type)) {
            PyErr_Format(PyExc_TypeError, "input %zd is a %s, not a tensor", k, Py_TYPE(object)->tp_name);
            goto done;
        }
        if (address_of(object, &address[k])) goto done;
    }
    result = call_outside_autocast(self, address, PySequence_Fast_ITEMS(held));
done:
    if (address != inside) PyMem_Free(address);
    Py_DECREF(held);
    return result;
}

PyObject *read_counters(PyObject *module, PyObject *unused) {
    return Py_BuildValue("{s:n,s:n,s:n,s:n}", "entries", counters.entries, "kernels", counters.kernels, "operators",
                         counters.operators, "views", counters.views);
}
