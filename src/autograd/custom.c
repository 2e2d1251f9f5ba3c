/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file custom.c
 * Operations of the user's own, translated into the tape's.
 *
 * The tape keeps one translation per operation, for as long as nodes may refer to it. A rule is put
 * together axis by axis; all tensors of a call let axes split a dim in one common order, so that
 * pieces of different tensors meet element by element. Computing is one kernel, a call of the
 * host, whose arguments are copied with the pieces' addresses: streams order it, the race check
 * sees every range, and devices that do not execute pass over it.
 */
#include "autograd_priv.h"

#include "tessera/custom_op.h"

#include <string.h>

struct tsri_custom {
    tsri_op_def def; /* first: a call knows its definition alone */
    tsr_custom_op op;
    tsri_custom *next;
};

_Static_assert(TSR_OP_MAX_IN == TSRI_OP_MAX_IN && TSR_OP_MAX_SAVED == TSRI_OP_MAX_SAVED &&
                   TSR_OP_ATTR_BYTES == TSRI_OP_ATTR_BYTES,
               "the public limits are the tape's");

_Static_assert(offsetof(tsr_op_work, attr) == 0 && _Alignof(tsr_op_work) >= 8,
               "settings are 8-byte aligned");

static const tsr_custom_op *op_of(const tsri_op_call *call)
{
    return &((const tsri_custom *)(const void *)call->def)->op;
}

/* ---- rule ---- */

static tsr_status check_place(const tsr_op_axis *axis, const char *what, int index,
                              const tsr_placement *place, int ndim)
{
    if ((unsigned)place->kind > TSR_PARTIAL) {
        return TSR_RAISE(TSR_ERR_PLACEMENT, "%s: placement of kind %d of %s %d on axis \"%s\"",
                         axis->shapes->where, (int)place->kind, what, index, axis->name);
    }
    if (place->kind == TSR_SHARD && (place->dim < 0 || place->dim >= ndim)) {
        return TSR_RAISE(TSR_ERR_PLACEMENT, "%s: Shard(%d) of %s %d of %d dims on axis \"%s\"",
                         axis->shapes->where, place->dim, what, index, ndim, axis->name);
    }
    return TSR_OK;
}

static tsr_status check_axis(const tsr_op_axis *axis)
{
    const tsr_op_shapes *shapes = axis->shapes;

    TSR_TRY(check_place(axis, "output", 0, &axis->out, shapes->out.ndim));
    for (int i = 0; i < shapes->saved_count; i++) {
        TSR_TRY(check_place(axis, "saved value", i, &axis->saved[i], shapes->saved[i].ndim));
    }
    for (int i = 0; i < shapes->in_count; i++) {
        TSR_TRY(check_place(axis, "input", i, &axis->in[i], shapes->in[i].ndim));
        if (axis->in[i].kind != TSR_REPLICATE && axis->out.kind == TSR_REPLICATE) {
            return TSR_RAISE(
                TSR_ERR_PLACEMENT, "%s: on axis \"%s\" the output is Replicate, but input %d is %s",
                shapes->where, axis->name, i, axis->in[i].kind == TSR_SHARD ? "Shard" : "Partial");
        }
    }
    return TSR_OK;
}

/* Each rank's backward sees its own piece or term of the output alone, see custom_op.h. */
static tsr_placement grad_place(const tsr_placement *in, const tsr_placement *out)
{
    if (in->kind == TSR_SHARD) {
        return *in;
    }
    return in->kind == TSR_REPLICATE && out->kind != TSR_REPLICATE ? tsri_partial()
                                                                   : tsri_replicate();
}

static tsr_status place_axis(tsri_op_call *call, const tsr_op_shapes *shapes, int at,
                             tsr_layout *saved)
{
    const tsr_mesh *mesh = tsr_comm_mesh(call->comm);
    tsr_op_axis axis = {.shapes = shapes,
                        .name = tsr_mesh_axis_name(mesh, at),
                        .size = tsr_mesh_axis_size(mesh, at)};

    for (int i = 0; i < call->in_count; i++) {
        axis.in[i] = call->want[i].place[at];
    }
    TSR_TRY(op_of(call)->place(&axis));
    TSR_TRY(check_axis(&axis));
    for (int i = 0; i < call->in_count; i++) {
        call->want[i].place[at] = axis.in[i];
        call->grad_layout[i].place[at] = grad_place(&axis.in[i], &axis.out);
    }
    call->out_layout.place[at] = axis.out;
    for (int i = 0; i < shapes->saved_count; i++) {
        saved[i].place[at] = axis.saved[i];
    }
    return TSR_OK;
}

static void common_order(tsri_op_call *call, int saved_count, tsr_layout *saved)
{
    tsr_layout order = call->want[0];

    for (int i = 1; i < call->in_count; i++) {
        tsri_rule_order(&order, &order, &call->want[i]);
    }
    for (int i = 0; i < call->in_count; i++) {
        memcpy(call->want[i].order, order.order, sizeof(order.order));
        memcpy(call->grad_layout[i].order, order.order, sizeof(order.order));
    }
    memcpy(call->out_layout.order, order.order, sizeof(order.order));
    for (int i = 0; i < saved_count; i++) {
        memcpy(saved[i].order, order.order, sizeof(order.order));
    }
}

static tsr_status ask_shape(tsri_op_call *call, const char *where, tsr_op_shapes *shapes)
{
    *shapes = (tsr_op_shapes){.where = where, .attr = call->attr, .in_count = call->in_count};
    for (int i = 0; i < call->in_count; i++) {
        shapes->in[i] = (tsr_op_tensor){.ndim = call->want[i].ndim, .dtype = call->in_dtype[i]};
        memcpy(shapes->in[i].shape, call->want[i].shape, sizeof(shapes->in[i].shape));
    }
    shapes->out = shapes->in[0];
    if (op_of(call)->shape != NULL) {
        TSR_TRY(op_of(call)->shape(shapes));
    }
    if (shapes->saved_count < 0 || shapes->saved_count > TSR_OP_MAX_SAVED) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s: saves %d values, at most %d", where,
                         shapes->saved_count, TSR_OP_MAX_SAVED);
    }
    return TSR_OK;
}

/* Memory for what forward saves, taken while its layouts are at hand. */
static tsr_status acquire_saved(tsri_op_call *call, const tsr_op_shapes *shapes,
                                const tsr_layout *saved)
{
    tsr_status status = TSR_OK;

    for (int i = 0; i < shapes->saved_count; i++) {
        TSR_TRY_GOTO(status,
                     tsri_op_acquire(call, &saved[i], shapes->saved[i].dtype, TSRI_MEM_ACTIVATION,
                                     &call->saved[i]),
                     release_saved);
        call->saved_count = i + 1;
    }
    return TSR_OK;
release_saved:
    while (call->saved_count > 0) {
        tsr_dtensor_release(&call->saved[--call->saved_count]);
    }
    return status;
}

static tsr_status rule(tsri_op_call *call)
{
    const tsr_mesh *mesh = tsr_comm_mesh(call->comm);
    tsr_layout saved[TSR_OP_MAX_SAVED];
    tsr_op_shapes shapes;
    char where[TSRI_WHERE_BYTES];

    TSR_TRY(ask_shape(call, tsri_op_where(call, where, sizeof(where)), &shapes));
    TSR_TRY(tsr_layout_init(mesh, shapes.out.shape, shapes.out.ndim, &call->out_layout));
    call->out_dtype = shapes.out.dtype;
    for (int i = 0; i < shapes.saved_count; i++) {
        TSR_TRY(tsr_layout_init(mesh, shapes.saved[i].shape, shapes.saved[i].ndim, &saved[i]));
    }
    for (int i = 0; i < call->in_count; i++) {
        call->grad_layout[i] = tsri_rule_whole(&call->want[i]);
    }
    for (int axis = 0; axis < tsri_rule_axes(call); axis++) {
        if (tsr_mesh_axis_size(mesh, axis) > 1) {
            TSR_TRY(place_axis(call, &shapes, axis, saved));
        }
    }
    common_order(call, shapes.saved_count, saved);
    TSR_TRY(acquire_saved(call, &shapes, saved));
    return TSR_OK;
}

/* ---- computing ---- */

typedef struct host_args {
    void (*run)(const tsr_op_work *work);
    tsr_op_work work;
} host_args;

_Static_assert(sizeof(host_args) <= TSRK_CUSTOM_ARGS_BYTES, "arguments of a call of the host");

static tsr_status run_on_host(const void *args)
{
    const host_args *host = args;

    host->run(&host->work);
    return TSR_OK;
}

static tsr_op_piece piece_of(const tsr_dtensor *tensor, void *data)
{
    tsr_op_piece piece = {.data = data,
                          .count = tensor->local_count,
                          .ndim = tensor->layout.ndim,
                          .dtype = tensor->dtype};

    memcpy(piece.shape, tensor->local_shape, sizeof(piece.shape));
    memcpy(piece.offset, tensor->local_offset, sizeof(piece.offset));
    return piece;
}

/* Declared as read; the piece's address is not const, because one type serves all pieces. */
static tsr_op_piece read_piece(tsri_call *launch, const tsr_dtensor *tensor)
{
    const tsr_buffer *buffer = tsri_dtensor_buffer(tensor);
    unsigned char *data = NULL;

    if (tsri_in(launch, tensor) != NULL) {
        data = (unsigned char *)buffer->address + tsri_dtensor_buffer_offset(tensor);
    }
    return piece_of(tensor, data);
}

static tsr_op_piece write_piece(tsri_call *launch, tsr_dtensor *tensor)
{
    return piece_of(tensor, tsri_out(launch, tensor));
}

static host_args begin_work(const tsri_op_call *call, void (*run)(const tsr_op_work *work))
{
    host_args host = {.run = run};

    host.work.in_count = call->in_count;
    host.work.saved_count = call->saved_count;
    memcpy(host.work.attr, call->attr, sizeof(host.work.attr));
    return host;
}

static tsr_status launch_work(tsri_call *launch, const host_args *host)
{
    tsrk_custom args = {.run = run_on_host};

    memcpy(args.args, host, sizeof(*host));
    TSR_TRY(TSRI_LAUNCH(launch, CUSTOM, &args));
    return TSR_OK;
}

static tsr_status forward(tsri_op_call *call)
{
    tsri_call launch = tsri_op_call_begin(call);
    host_args host = begin_work(call, op_of(call)->forward);

    for (int i = 0; i < call->in_count; i++) {
        host.work.in[i] = read_piece(&launch, call->in[i]);
    }
    for (int i = 0; i < call->saved_count; i++) {
        host.work.saved[i] = write_piece(&launch, call->saved[i]);
    }
    host.work.out = write_piece(&launch, call->out);
    TSR_TRY(launch_work(&launch, &host));
    return TSR_OK;
}

static tsr_status backward(tsri_op_call *call)
{
    tsri_call launch = tsri_op_call_begin(call);
    host_args host = begin_work(call, op_of(call)->backward);

    for (int i = 0; i < call->in_count; i++) {
        if (call->in[i] != NULL) {
            host.work.in[i] = read_piece(&launch, call->in[i]);
        }
        if (call->din[i] != NULL) {
            host.work.accumulate[i] = call->accumulate[i];
            host.work.din[i] = write_piece(&launch, call->din[i]);
        }
    }
    for (int i = 0; i < call->saved_count; i++) {
        host.work.saved[i] = read_piece(&launch, call->saved[i]);
    }
    if (call->out != NULL) {
        host.work.out = read_piece(&launch, call->out);
    }
    host.work.dout = read_piece(&launch, call->dout);
    TSR_TRY(launch_work(&launch, &host));
    return TSR_OK;
}

/* ---- translations ---- */

static bool same_op(const tsr_custom_op *a, const tsr_custom_op *b)
{
    return strcmp(a->name, b->name) == 0 && a->shape == b->shape && a->place == b->place &&
           a->forward == b->forward && a->backward == b->backward && a->keep_in == b->keep_in &&
           a->keep_out == b->keep_out && a->adds_grad == b->adds_grad &&
           memcmp(a->takes, b->takes, sizeof(a->takes)) == 0;
}

static tsr_status translate(tsr_tape *tape, const tsr_custom_op *op, const tsri_op_def **out)
{
    tsr_status status = TSR_OK;
    tsri_custom *custom = NULL;

    for (custom = tape->customs; custom != NULL; custom = custom->next) {
        if (same_op(&custom->op, op)) {
            *out = &custom->def;
            return TSR_OK;
        }
    }
    TSR_TRY(tsri_alloc(1, sizeof(*custom), &custom));
    custom->op = *op;
    TSR_TRY_GOTO(status, tsri_tape_intern(tape, op->name, &custom->op.name), free_custom);
    custom->def = (tsri_op_def){.name = custom->op.name,
                                .rule = rule,
                                .forward = forward,
                                .backward = op->backward != NULL ? backward : NULL,
                                .keep_in = op->keep_in,
                                .keep_out = op->keep_out,
                                .no_accumulate = ~op->adds_grad};
    for (int i = 0; i < TSR_OP_MAX_IN; i++) {
        custom->def.takes[i] = op->takes[i] != 0 ? op->takes[i] : TSR_DTYPE_BIT(TSR_F32);
    }
    custom->next = tape->customs;
    tape->customs = custom;
    *out = &custom->def;
    return TSR_OK;
free_custom:
    tsri_free(&custom);
    return status;
}

void tsri_customs_free(tsri_custom **customs)
{
    while (*customs != NULL) {
        tsri_custom *custom = *customs;

        *customs = custom->next;
        tsri_free(&custom);
    }
}

/* Bit i of set speaks of input i. */
static tsr_status check_bits(const tsr_custom_op *op, const char *field, unsigned set, int in_count)
{
    const unsigned beyond = set & (~0U << (unsigned)in_count);
    unsigned bit = 0;

    if (beyond != 0) {
        while ((beyond >> bit & 1U) == 0) {
            bit++;
        }
        return TSR_RAISE(TSR_ERR_INVALID, "%s: %s has bit %u, of inputs 0 to %d", op->name, field,
                         bit, in_count - 1);
    }
    return TSR_OK;
}

static tsr_status check_types(const tsr_custom_op *op)
{
    for (int i = 0; i < TSR_OP_MAX_IN; i++) {
        if ((op->takes[i] & ~TSR_DTYPES_ANY) != 0) {
            return TSR_RAISE(TSR_ERR_INVALID,
                             "%s: takes[%d] is 0x%x, wants TSR_DTYPE_BIT of element types, 0x%x "
                             "for all",
                             op->name, i, op->takes[i], TSR_DTYPES_ANY);
        }
    }
    return TSR_OK;
}

static tsr_status check_op(const tsr_tape *tape, const tsr_custom_op *op, int in_count,
                           const void *attr, size_t attr_bytes)
{
    const tsr_backend *backend = tsri_comm_device(tape->comm)->backend;

    if (op->name == NULL || op->place == NULL || op->forward == NULL) {
        return TSR_RAISE(TSR_ERR_INVALID, "custom operation %s has no %s",
                         op->name != NULL ? op->name : "(null)",
                         op->name == NULL    ? "name"
                         : op->place == NULL ? "place"
                                             : "forward");
    }
    if (in_count < 1 || in_count > TSR_OP_MAX_IN) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s of %d inputs, wants 1..%d", op->name, in_count,
                         TSR_OP_MAX_IN);
    }
    if (attr_bytes > TSR_OP_ATTR_BYTES || (attr == NULL && attr_bytes > 0)) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s with %zu bytes of settings%s, at most %d", op->name,
                         attr_bytes, attr == NULL ? " at NULL" : "", TSR_OP_ATTR_BYTES);
    }
    TSR_TRY(check_bits(op, "keep_in", op->keep_in, in_count));
    TSR_TRY(check_bits(op, "adds_grad", op->adds_grad, in_count));
    TSR_TRY(check_types(op));
    if ((backend->caps & TSR_CAP_EXECUTES) != 0 && (backend->caps & TSR_CAP_HOST) == 0) {
        return TSR_RAISE(TSR_ERR_UNSUPPORTED,
                         "%s computes on host addresses, backend \"%s\" has none", op->name,
                         backend->name);
    }
    return TSR_OK;
}

tsr_status tsr_op_custom(tsr_tape *tape, const tsr_custom_op *op, tsr_dtensor *const *in,
                         int in_count, const void *attr, size_t attr_bytes, tsr_dtensor **out)
{
    TSRI_WANT(tape, op, out);
    TSRI_WANT_EACH(in, in_count);

    const tsri_op_def *def = NULL;

    TSR_TRY(check_op(tape, op, in_count, attr, attr_bytes));
    TSR_TRY(translate(tape, op, &def));
    TSR_TRY(tsri_op_apply(tape, def, in, in_count, attr, attr_bytes, out));
    return TSR_OK;
}

/* ---- a product ---- */

static tsr_status check_operand(const char *name, const void *at, int64_t rows, int64_t cols,
                                int64_t *ld, tsr_dtype *type)
{
    if (*type == TSR_DTYPE_DEFAULT) {
        *type = TSR_F32;
    }
    if (*ld == 0) {
        *ld = cols;
    }
    if (tsr_dtype_size(*type) == 0 || (TSR_DTYPES_FLOAT & TSR_DTYPE_BIT(*type)) == 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "product: %s is %s, wants f32, bf16 or f16", name,
                         tsr_dtype_name(*type));
    }
    if (rows < 0 || cols < 0 || *ld < cols) {
        return TSR_RAISE(TSR_ERR_INVALID, "product: %s is [%lld, %lld] with rows %lld apart", name,
                         (long long)rows, (long long)cols, (long long)*ld);
    }
    if (at == NULL && rows > 0 && cols > 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "product: %s [%lld, %lld] is NULL", name, (long long)rows,
                         (long long)cols);
    }
    return TSR_OK;
}

tsr_status tsr_product_compute(const tsr_product *product)
{
    TSRI_WANT(product);

    const tsr_product *p = product;
    tsrk_matmul args = {.a = p->a,
                        .b = p->b,
                        .c = p->c,
                        .m = p->m,
                        .n = p->n,
                        .k = p->k,
                        .lda = p->lda,
                        .ldb = p->ldb,
                        .ldc = p->ldc,
                        .a_type = p->a_type,
                        .b_type = p->b_type,
                        .c_type = p->c_type,
                        .trans_a = p->trans_a,
                        .trans_b = p->trans_b,
                        .accumulate = p->accumulate};

    TSR_TRY(check_operand("a", p->a, p->trans_a ? p->k : p->m, p->trans_a ? p->m : p->k, &args.lda,
                          &args.a_type));
    TSR_TRY(check_operand("b", p->b, p->trans_b ? p->n : p->k, p->trans_b ? p->k : p->n, &args.ldb,
                          &args.b_type));
    TSR_TRY(check_operand("c", p->c, p->m, p->n, &args.ldc, &args.c_type));
    if (p->m > 0 && p->n > 0) {
        TSR_TRY(tsri_host_matmul(&args));
    }
    return TSR_OK;
}

/* ---- words for rules ---- */

void tsr_op_place_rows(tsr_op_axis *axis, int dims)
{
    TSRI_WANT_VOID(axis);
    if (axis->in[0].kind != TSR_SHARD || axis->in[0].dim >= dims) {
        axis->in[0] = tsr_replicate();
    }
    for (int i = 1; i < axis->shapes->in_count; i++) {
        axis->in[i] = tsr_replicate();
    }
    axis->out = axis->in[0];
    for (int i = 0; i < axis->shapes->saved_count; i++) {
        axis->saved[i] = axis->in[0];
    }
}

void tsr_op_place_pointwise(tsr_op_axis *axis)
{
    TSRI_WANT_VOID(axis);

    tsr_placement place = tsr_replicate();

    for (int i = 0; i < axis->shapes->in_count; i++) {
        if (axis->in[i].kind == TSR_SHARD) {
            place = axis->in[i];
            break;
        }
    }
    for (int i = 0; i < axis->shapes->in_count; i++) {
        axis->in[i] = place;
    }
    axis->out = place;
    for (int i = 0; i < axis->shapes->saved_count; i++) {
        axis->saved[i] = place;
    }
}
