/* The operator non_max_suppression, as ONNX defines it: of boxes that overlap, keep the one with
 * the best score. */
#include "element.h"
#include <stdlib.h>

typedef struct suppression {
    const char *boxes; /* contiguous float32 of any alignment, as are the scores */
    int64_t limit; /* most boxes per batch and class */
    double overlap, score;
    int has_score, center;
} suppression;

enum { FLOAT_BYTES = 4, BOX_BYTES = 4 * FLOAT_BYTES };

typedef struct candidate {
    int64_t box;
    float score;
} candidate;

/* Get the corners of a box, low[d] <= high[d]. With `center` a box is [x, y, width, height],
 * otherwise two opposite corners. */
static void corners(const char *at, int center, float *low, float *high)
{
    float box[4];
    for (int k = 0; k < 4; k++)
        box[k] = kiln_load_f32(at + FLOAT_BYTES * k);
    for (int d = 0; d < 2; d++) {
        const float a = center ? box[d] - box[2 + d] / 2 : box[d];
        const float b = center ? box[d] + box[2 + d] / 2 : box[2 + d];
        low[d] = a < b ? a : b;
        high[d] = a < b ? b : a;
    }
}

/* Intersection over union of two boxes. */
static double overlap_of(const char *a, const char *b, int center)
{
    float a_low[2], a_high[2], b_low[2], b_high[2], shared = 1;
    corners(a, center, a_low, a_high);
    corners(b, center, b_low, b_high);
    for (int d = 0; d < 2; d++) {
        const float low = a_low[d] > b_low[d] ? a_low[d] : b_low[d];
        const float high = a_high[d] < b_high[d] ? a_high[d] : b_high[d];
        if (high <= low)
            return 0;
        shared *= high - low;
    }
    const float whole = (a_high[0] - a_low[0]) * (a_high[1] - a_low[1]) +
                        (b_high[0] - b_low[0]) * (b_high[1] - b_low[1]) - shared;
    return whole > 0 ? shared / whole : 0;
}

/* Sort by score, best first, with a stable merge sort; `to` is scratch of the same size. */
static void sort_candidates(candidate *from, candidate *to, int64_t count)
{
    candidate *const start = from;
    for (int64_t width = 1; width < count; width *= 2) {
        for (int64_t low = 0; low < count; low += 2 * width) {
            const int64_t middle = kiln_min(low + width, count);
            const int64_t high = kiln_min(low + 2 * width, count);
            int64_t a = low, b = middle;
            for (int64_t k = low; k < high; k++) {
                const int first = a < middle && (b >= high || from[a].score >= from[b].score);
                to[k] = first ? from[a++] : from[b++];
            }
        }
        candidate *swap = from;
        from = to;
        to = swap;
    }
    if (from != start)
        memcpy(start, from, (size_t)count * sizeof *start);
}

/* Write the boxes of one class that are kept to `kept`; return their number. */
static int64_t select_boxes(const suppression *s, const char *boxes, const char *scores,
                            int64_t count, candidate *sorted, int64_t *kept)
{
    int64_t found = 0, selected = 0;
    for (int64_t i = 0; i < count; i++) {
        const float score = kiln_load_f32(scores + FLOAT_BYTES * i);
        if (!s->has_score || score > s->score)
            sorted[found++] = (candidate){i, score};
    }
    sort_candidates(sorted, sorted + count, found);
    for (int64_t i = 0; i < found && selected < s->limit; i++) {
        int free_of_overlap = 1;
        for (int64_t k = 0; k < selected && free_of_overlap; k++)
            free_of_overlap = overlap_of(boxes + BOX_BYTES * sorted[i].box, boxes + BOX_BYTES * kept[k],
                                         s->center) <= s->overlap;
        if (free_of_overlap)
            kept[selected++] = sorted[i].box;
    }
    return selected;
}

/* Make the result, an int64 tensor [count, 3] of rows (batch, class, box). */
static int make_rows(const int64_t *rows, int64_t count, kiln_value *result)
{
    const int64_t shape[] = {count, 3};
    const int code = kiln_make_tensor(shape, 2, (kiln_dtype){KILN_CODE_INT, 64, 1}, result);
    if (code == KILN_OK && count > 0)
        memcpy(kiln_data(kiln_tensor_of(result)), rows, 3 * (size_t)count * sizeof *rows);
    return code;
}

static int suppress(const suppression *s, const kiln_tensor *boxes, const kiln_tensor *scores,
                    kiln_value *result)
{
    const int64_t batches = boxes->shape[0], count = boxes->shape[1], classes = scores->shape[1];
    const char *score = kiln_data(scores);
    /* Cannot overflow: at most the number of scores, which kiln_packed() has checked. */
    const int64_t room = kiln_min(s->limit, count) * (batches * classes);
    if (room == 0) /* before allocating for `count`, which may be huge if another size is 0 */
        return make_rows(NULL, 0, result);
    candidate *sorted = kiln_room(count, 2 * sizeof *sorted, "boxes");
    int64_t *rows = kiln_room(room, 3 * sizeof *rows, "boxes that are kept");
    int64_t *kept = kiln_room(count, sizeof *kept, "boxes"), total = 0;
    int code = sorted != NULL && rows != NULL && kept != NULL ? KILN_OK : KILN_ERROR_MEMORY;
    for (int64_t b = 0; code == KILN_OK && b < batches; b++)
        for (int64_t c = 0; c < classes; c++) {
            const int64_t n = select_boxes(s, s->boxes + BOX_BYTES * b * count,
                                           score + FLOAT_BYTES * (b * classes + c) * count, count,
                                           sorted, kept);
            for (int64_t i = 0; i < n; i++, total++) {
                rows[3 * total] = b;
                rows[3 * total + 1] = c;
                rows[3 * total + 2] = kept[i];
            }
        }
    if (code == KILN_OK)
        code = make_rows(rows, total, result);
    free(sorted);
    free(rows);
    free(kept);
    return code;
}

/* Read a number or the element of a one-element tensor; KILN_NONE leaves *number unchanged. */
static int read_number(const kiln_value *value, const char *what, double *number)
{
    const kiln_tensor *t = kiln_tensor_of(value);
    const int code = t == NULL ? KILN_OK : kiln_check_tensor(t);
    if (code != KILN_OK)
        return code;
    if (value->kind == KILN_INT || value->kind == KILN_BOOL)
        *number = (double)value->as.integer;
    else if (value->kind == KILN_UINT)
        *number = (double)(uint64_t)value->as.integer;
    else if (value->kind == KILN_FLOAT)
        *number = value->as.real;
    else if (t != NULL && t->device_type == 1 && kiln_element_count(t) == 1 &&
             kiln_is_number(t->dtype))
        *number = kiln_is_real(t->dtype)               ? kiln_load_real(t->dtype, kiln_data(t))
                  : t->dtype.code == KILN_CODE_INT ? (double)kiln_load_int(t->dtype, kiln_data(t))
                                                   : (double)kiln_load_uint(t->dtype, kiln_data(t));
    else if (value->kind != KILN_NONE)
        return kiln_fail(KILN_ERROR_ARGUMENT, "non_max_suppression: %s must be one number, "
                                              "received %s",
                         what, kiln_kind_name(value));
    return KILN_OK;
}

static int check_boxes(const kiln_tensor *boxes, const kiln_tensor *scores)
{
    const kiln_dtype b = boxes->dtype, s = scores->dtype;
    if (b.code != KILN_CODE_FLOAT || b.bits != 32 || b.lanes != 1 || s.code != KILN_CODE_FLOAT ||
        s.bits != 32 || s.lanes != 1)
        return kiln_fail(KILN_ERROR_DTYPE, "non_max_suppression: boxes and scores must be float32");
    if (boxes->ndim != 3 || scores->ndim != 3 || boxes->shape[2] != 4 ||
        boxes->shape[0] != scores->shape[0] || boxes->shape[1] != scores->shape[2])
        return kiln_fail(KILN_ERROR_SHAPE, "non_max_suppression: boxes must be [batch, n, 4] and "
                                           "scores [batch, classes, n]");
    return KILN_OK;
}

int kiln_non_max_suppression(const kiln_value *boxes, const kiln_value *scores,
                             const kiln_value *max_output, const kiln_value *iou_threshold,
                             const kiln_value *score_threshold, int center, kiln_value *result)
{
    const kiln_tensor *b, *s;
    kiln_value packed_boxes, packed_scores = kiln_nothing;
    suppression how = {NULL, 0, 0, 0, score_threshold->kind != KILN_NONE, center};
    double limit = 0;
    int code = kiln_packed(boxes, &b, &packed_boxes);
    if (code == KILN_OK)
        code = kiln_packed(scores, &s, &packed_scores);
    if (code == KILN_OK)
        code = check_boxes(b, s);
    if (code == KILN_OK)
        code = read_number(max_output, "the number of boxes", &limit);
    if (code == KILN_OK)
        code = read_number(iou_threshold, "the overlap threshold", &how.overlap);
    if (code == KILN_OK)
        code = read_number(score_threshold, "the score threshold", &how.score);
    if (code == KILN_OK) {
        how.boxes = kiln_data(b);
        how.limit = !(limit > 0) ? 0 : limit > 9e18 ? INT64_MAX : (int64_t)limit; /* NaN: 0 */
        code = suppress(&how, b, s, result);
    }
    kiln_release(&packed_boxes);
    kiln_release(&packed_scores);
    return code;
}
