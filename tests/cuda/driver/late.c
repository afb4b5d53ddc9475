/* With LOOKALIKE_LATE=1 what is queued in a stream that somebody has made runs as late as CUDA allows:
 * when the host waits for it, or something that has to come after it runs. What the default stream gets
 * runs at once, after all that is queued in streams that it waits for. With 2, each operation that runs
 * comes after one of every other stream: two streams that use the same memory spoil each other. */
#include "lookalike.h"
#include <stdlib.h>

int runs_late(const object *stream)
{
    return stream > (object *)2 && setting("LOOKALIKE_LATE", 0) != 0;
}

int number_of(const object *stream)
{
    return stream > (object *)2 ? stream->number : 0;
}

/* Take the first operation of a stream, and run it unless it is a wait. */
static void run_first(object *stream)
{
    operation *const op = stream->waiting;
    stream->waiting = op->next;
    stream->n_done++;
    if (op->awaited == NULL)
        run_operation(op, stream);
    free(op);
}

static void run_others(const object *stream)
{
    for (object *o = first_object(); o != NULL; o = o->next)
        if (o->kind == STREAM && o != stream && o->waiting != NULL && o->waiting->awaited == NULL)
            run_first(o);
}

/* Run what a stream has got, up to a number of operations since it was made. A wait stays the first
 * until it is over, so that nothing behind it runs. */
static void run_until(object *stream, uint64_t number)
{
    while (stream->waiting != NULL && stream->n_done < number) {
        if (setting("LOOKALIKE_LATE", 0) == 2)
            run_others(stream);
        const operation *const op = stream->waiting;
        if (op->awaited != NULL && is_a(op->awaited, STREAM))
            run_until(op->awaited, op->awaited_number);
        run_first(stream);
    }
}

void run_later(object *stream, const operation *op)
{
    operation **at = &stream->waiting;
    while (*at != NULL)
        at = &(*at)->next;
    *at = malloc(sizeof *op);
    **at = *op;
    (*at)->next = NULL;
    stream->n_issued++;
}

void catch_up(object *stream)
{
    if (stream > (object *)2)
        run_until(stream, stream->n_issued);
    else
        catch_up_all(1);
}

void catch_up_all(int blocking_only)
{
    for (object *o = first_object(); o != NULL; o = o->next)
        if (o->kind == STREAM && !(blocking_only && o->flags == 1))
            run_until(o, o->n_issued);
}

/* Now, or after what the stream has got before. */
void run_in(object *stream, const operation *op)
{
    if (runs_late(stream)) {
        run_later(stream, op);
    } else {
        catch_up(stream);
        run_operation(op, stream);
    }
}

void record_event(object *event, object *stream)
{
    event->owner = stream > (object *)2 ? stream : NULL;
    event->n_issued = event->owner != NULL ? stream->n_issued : 0;
    if (event->owner == NULL)
        catch_up(stream);
}

void wait_for_event(object *stream, const object *event)
{
    const operation op = {.awaited = event->owner, .awaited_number = event->n_issued};
    if (event->owner == NULL || !is_a(event->owner, STREAM))
        return;
    if (runs_late(stream))
        run_later(stream, &op);
    else
        run_until(event->owner, event->n_issued);
}
