/* kiln_json.h - reads NUL-terminated JSON without allocating. Internal to kiln_host.h.
 *
 * kiln_host_json_check() validates a whole text, once; kiln_host_json_first() and the functions
 * after it require a validated text. A value, key or item is a pointer to its first character; the
 * next one is found by skipping over it, in linear time.
 */
#ifndef KILN_JSON_H
#define KILN_JSON_H

#include <stdlib.h>
#include <string.h>

#define KILN_HOST_JSON_DEPTH 64
/* Limits, as in base/json_text.py, so that a small text cannot demand much memory. Duplicate names
 * in an object are rejected too, because JSON readers differ in which one they use. */
#define KILN_HOST_JSON_BYTES ((size_t)8 << 20)
#define KILN_HOST_JSON_VALUES ((size_t)1 << 18)
#define KILN_HOST_JSON_NAMES 256

#ifdef __cplusplus
extern "C" {
#endif

/* Skip white space. */
static inline const char *kiln_host_json_space(const char *at)
{
    while (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r')
        at++;
    return at;
}

/* Read four hexadecimal digits; return 0 if they are not. */
static inline int kiln_host_json_hex(const char *at, unsigned *value)
{
    *value = 0;
    for (int i = 0; i < 4; i++) {
        const char c = at[i];
        const int digit = c >= '0' && c <= '9' ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0)
            return 0;
        *value = *value * 16 + (unsigned)digit;
    }
    return 1;
}

/* Length of the UTF-8 sequence at `at` (RFC 3629); 0 if it is malformed. */
static inline int kiln_host_utf8_length(const char *at)
{
    const unsigned char c = (unsigned char)at[0], next = (unsigned char)at[c != 0];
    const int length = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
    if ((c == 0xe0 && next < 0xa0) || (c == 0xed && next > 0x9f) || (c == 0xf0 && next < 0x90) ||
        (c == 0xf4 && next > 0x8f))
        return 0;
    for (int i = 1; i < length; i++)
        if (((unsigned char)at[i] & 0xc0) != 0x80) /* NUL among others */
            return 0;
    return length;
}

/* Return the position after a string, or NULL if there is no valid string here. */
static inline const char *kiln_host_json_skip_string(const char *at)
{
    unsigned unit;
    if (*at != '"')
        return NULL;
    for (at++; *at != '"'; at++) {
        const int length = kiln_host_utf8_length(at);
        if (length == 0 || (unsigned char)*at < 0x20)
            return NULL;
        at += length - 1;
        if (*at != '\\')
            continue;
        at++;
        if (*at == 'u' && kiln_host_json_hex(at + 1, &unit))
            at += 4;
        else if (*at == 0 || strchr("\"\\/bfnrt", *at) == NULL)
            return NULL;
    }
    return at + 1;
}

/* Decode a \u escape, of two units if it is a surrogate pair; a lone surrogate gives U+FFFD. *at is
 * at the `u`, and is left at the last digit. */
static inline unsigned kiln_host_json_unicode(const char **at)
{
    unsigned unit, low;
    kiln_host_json_hex(*at + 1, &unit);
    *at += 4;
    if (unit >= 0xd800 && unit < 0xdc00 && (*at)[1] == '\\' && (*at)[2] == 'u' &&
        kiln_host_json_hex(*at + 3, &low) && low >= 0xdc00 && low < 0xe000) {
        *at += 6;
        return 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
    }
    return unit >= 0xd800 && unit < 0xe000 ? 0xfffd : unit; /* a lone surrogate */
}

/* Return the next code point of a validated string and advance; -1 at the closing quote. */
static inline long kiln_host_json_char(const char **at)
{
    const unsigned char c = (unsigned char)**at;
    const int length = kiln_host_utf8_length(*at);
    if (c == '"')
        return -1;
    if (c == '\\') {
        const char *const plain = strchr("b\bf\fn\nr\rt\t", *++*at);
        const long made = **at == 'u' ? (long)kiln_host_json_unicode(at)
                                      : (long)(plain != NULL ? plain[1] : **at);
        ++*at;
        return made;
    }
    long made = length == 1 ? c : c & (0xff >> (length + 1));
    for (int i = 1; i < length; i++)
        made = made << 6 | ((unsigned char)(*at)[i] & 0x3f);
    *at += length;
    return made;
}

/* Whether two validated strings are equal. The pointers are behind the opening quotes. */
static inline int kiln_host_json_same(const char *a, const char *b)
{
    for (;;) {
        const long x = kiln_host_json_char(&a), y = kiln_host_json_char(&b);
        if (x != y || x < 0)
            return x == y;
    }
}

/* Skip one or more digits; NULL without any. */
static inline const char *kiln_host_json_skip_digits(const char *at)
{
    if (*at < '0' || *at > '9')
        return NULL;
    while (*at >= '0' && *at <= '9')
        at++;
    return at;
}

/* Return the position after a number, or NULL if it is malformed. */
static inline const char *kiln_host_json_skip_number(const char *at)
{
    at += *at == '-';
    if (*at == '0' && at[1] >= '0' && at[1] <= '9')
        return NULL;
    at = kiln_host_json_skip_digits(at);
    if (at != NULL && *at == '.')
        at = kiln_host_json_skip_digits(at + 1);
    if (at != NULL && (*at == 'e' || *at == 'E'))
        at = kiln_host_json_skip_digits(at[1] == '-' || at[1] == '+' ? at + 2 : at + 1);
    return at;
}

static inline const char *kiln_host_json_walk(const char *at, int depth, const char **room);

/* Return the position after an object whose first member is at `at`; NULL if it is malformed, or has
 * more than KILN_HOST_JSON_NAMES members, or a name twice: that is looked for if there is `room`, of
 * KILN_HOST_JSON_NAMES names for each level of depth. */
static inline const char *kiln_host_json_skip_members(const char *at, int depth, const char **room)
{
    const char **const names =
        room == NULL ? NULL : room + (size_t)(depth - 1) * KILN_HOST_JSON_NAMES;
    for (int count = 0; *at != '}'; count++) {
        if (count > 0)
            at = *at == ',' ? kiln_host_json_space(at + 1) : "";
        if (count == KILN_HOST_JSON_NAMES || *at != '"')
            return NULL;
        if (names != NULL)
            names[count] = at + 1;
        if ((at = kiln_host_json_skip_string(at)) == NULL)
            return NULL;
        for (int i = 0; names != NULL && i < count; i++)
            if (kiln_host_json_same(names[i], names[count]))
                return NULL;
        if (*(at = kiln_host_json_space(at)) != ':' ||
            (at = kiln_host_json_walk(at + 1, depth - 1, room)) == NULL)
            return NULL;
    }
    return kiln_host_json_space(at + 1);
}

/* The same for an array whose first item is at `at`. */
static inline const char *kiln_host_json_skip_items(const char *at, int depth, const char **room)
{
    for (int first = 1; *at != ']'; first = 0)
        if ((!first && *at++ != ',') || (at = kiln_host_json_walk(at, depth - 1, room)) == NULL)
            return NULL;
    return kiln_host_json_space(at + 1);
}

/* Return the position after a value and the white space behind it; NULL if it is malformed or
 * nested more than `depth` levels. */
static inline const char *kiln_host_json_walk(const char *at, int depth, const char **room)
{
    static const char *const words[] = {"true", "false", "null"};
    at = kiln_host_json_space(at);
    if (*at == '{' || *at == '[') {
        const char *const first = kiln_host_json_space(at + 1);
        if (depth == 0)
            return NULL;
        return *at == '{' ? kiln_host_json_skip_members(first, depth, room)
                          : kiln_host_json_skip_items(first, depth, room);
    }
    for (int i = 0; i < 3; i++)
        if (strncmp(at, words[i], strlen(words[i])) == 0)
            return kiln_host_json_space(at + strlen(words[i]));
    at = *at == '"' ? kiln_host_json_skip_string(at) : kiln_host_json_skip_number(at);
    return at == NULL ? NULL : kiln_host_json_space(at);
}

/* The same of a text that was checked before. */
static inline const char *kiln_host_json_skip(const char *at, int depth)
{
    return kiln_host_json_walk(at, depth, NULL);
}

/* Whether a text is one valid JSON value within the limits above; -1 if memory is short. */
static inline int kiln_host_json_check(const char *text)
{
    size_t values = 0, length = 0;
    for (; text[length] != 0; length++)
        values += text[length] == '[' || text[length] == '{' || text[length] == ',' ||
                  text[length] == ':';
    if (length > KILN_HOST_JSON_BYTES || values > KILN_HOST_JSON_VALUES)
        return 0;
    /* Not on the stack, which is small in some threads. */
    const char **const room = (const char **)malloc(sizeof *room * KILN_HOST_JSON_DEPTH *
                                                    KILN_HOST_JSON_NAMES);
    if (room == NULL)
        return -1;
    const char *const end = kiln_host_json_walk(text, KILN_HOST_JSON_DEPTH, room);
    const int is_json = end != NULL && *end == 0;
    free((void *)room);
    return is_json;
}

/* Return the first item of an array (open = '[') or the first key of an object (open = '{'); NULL
 * if it is empty, NULL or of another kind. */
static inline const char *kiln_host_json_first(const char *at, char open)
{
    if (at == NULL || *(at = kiln_host_json_space(at)) != open)
        return NULL;
    at = kiln_host_json_space(at + 1);
    return *at == (open == '{' ? '}' : ']') ? NULL : at;
}

/* Return the item or key after this value, or NULL at the end. */
static inline const char *kiln_host_json_next(const char *value)
{
    const char *at = kiln_host_json_skip(value, KILN_HOST_JSON_DEPTH);
    return *at == ',' ? kiln_host_json_space(at + 1) : NULL;
}

/* Return the value of a key. */
static inline const char *kiln_host_json_value(const char *key)
{
    return kiln_host_json_space(kiln_host_json_space(kiln_host_json_skip_string(key)) + 1);
}

/* Return the value of an object's member, or NULL if it has none of that name. `name` is plain
 * ASCII. */
static inline const char *kiln_host_json_member(const char *object, const char *name)
{
    const char *key = kiln_host_json_first(object, '{');
    for (; key != NULL; key = kiln_host_json_next(kiln_host_json_value(key))) {
        const char *at = key + 1, *wanted = name;
        while (*wanted != 0 && kiln_host_json_char(&at) == *wanted)
            wanted++;
        if (*wanted == 0 && *at == '"')
            return kiln_host_json_value(key);
    }
    return NULL;
}

/* Return the number of items of an array or members of an object; -1 if the value is neither. */
static inline int kiln_host_json_count(const char *value)
{
    int count = 0;
    if (value == NULL || (*value != '[' && *value != '{'))
        return -1;
    for (const char *at = kiln_host_json_first(value, *value); at != NULL; count++)
        at = kiln_host_json_next(*value == '{' ? kiln_host_json_value(at) : at);
    return count;
}

/* Write a code point as UTF-8; return the position after it. */
static inline char *kiln_host_put_utf8(char *to, unsigned c)
{
    if (c < 0x80) {
        *to++ = (char)c;
        return to;
    }
    const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    *to++ = (char)((more == 1 ? 0xc0u : more == 2 ? 0xe0u : 0xf0u) | c >> 6 * more);
    for (int i = more - 1; i >= 0; i--)
        *to++ = (char)(0x80u | (c >> 6 * i & 0x3fu));
    return to;
}

/* Write a string as UTF-8 text, any other value as its JSON text, with a NUL. The text of the
 * value, plus one byte, is enough room for `to`. */
static inline void kiln_host_json_decode(const char *at, char *to)
{
    if (*at != '"') {
        const char *const end = kiln_host_json_skip(at, KILN_HOST_JSON_DEPTH);
        while (at < end && strchr(" \n\t\r", *at) == NULL)
            *to++ = *at++;
        *to = 0;
        return;
    }
    for (at++; *at != '"'; at++) {
        if (*at != '\\') {
            *to++ = *at;
            continue;
        }
        at++;
        const char *const plain = strchr("b\bf\fn\nr\rt\t", *at);
        if (*at == 'u')
            to = kiln_host_put_utf8(to, kiln_host_json_unicode(&at));
        else
            *to++ = plain != NULL ? plain[1] : *at;
    }
    *to = 0;
}

#ifdef __cplusplus
}
#endif
#endif
