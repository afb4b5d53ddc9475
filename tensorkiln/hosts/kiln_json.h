/* kiln_json.h - reading JSON that ends with NUL, without memory of its own. A part of kiln_host.h.
 *
 * kiln_host_json_skip() checks a whole text, once; the other functions take values of a text that was
 * checked, and find others by walking over what lies between.
 */
#ifndef KILN_JSON_H
#define KILN_JSON_H

#include <string.h>

#define KILN_HOST_JSON_DEPTH 64
/* As in base/json_text.py: a small text that asks for much memory is refused, and so is an object with
 * a name twice, for readers differ in which of them they take. */
#define KILN_HOST_JSON_BYTES ((size_t)8 << 20)
#define KILN_HOST_JSON_VALUES ((size_t)1 << 18)
#define KILN_HOST_JSON_NAMES 256

#ifdef __cplusplus
extern "C" {
#endif

static inline const char *kiln_host_json_space(const char *at)
{
    while (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r')
        at++;
    return at;
}

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

/* Bytes of the UTF-8 sequence that begins here (RFC 3629); 0 when it is none. */
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

/* Behind a string; NULL when it is none. */
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

/* The character behind "\u"; `*at` is left at its last digit. */
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
    return unit >= 0xd800 && unit < 0xe000 ? 0xfffd : unit; /* half a pair */
}

/* The next character of a string that was checked, -1 behind the last. */
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

/* Whether two strings that were checked are equal; each pointer is at its first character. */
static inline int kiln_host_json_same(const char *a, const char *b)
{
    for (;;) {
        const long x = kiln_host_json_char(&a), y = kiln_host_json_char(&b);
        if (x != y || x < 0)
            return x == y;
    }
}

static inline const char *kiln_host_json_skip_digits(const char *at)
{
    if (*at < '0' || *at > '9')
        return NULL;
    while (*at >= '0' && *at <= '9')
        at++;
    return at;
}

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

static inline const char *kiln_host_json_skip(const char *at, int depth);

/* Behind the members of an object, whose names differ. */
static inline const char *kiln_host_json_skip_members(const char *at, int depth)
{
    const char *names[KILN_HOST_JSON_NAMES];
    for (int count = 0; *at != '}'; count++) {
        if (count > 0)
            at = *at == ',' ? kiln_host_json_space(at + 1) : "";
        if (count == KILN_HOST_JSON_NAMES || *at != '"')
            return NULL;
        names[count] = at + 1;
        if ((at = kiln_host_json_skip_string(at)) == NULL)
            return NULL;
        for (int i = 0; i < count; i++)
            if (kiln_host_json_same(names[i], names[count]))
                return NULL;
        if (*(at = kiln_host_json_space(at)) != ':' ||
            (at = kiln_host_json_skip(at + 1, depth - 1)) == NULL)
            return NULL;
    }
    return kiln_host_json_space(at + 1);
}

static inline const char *kiln_host_json_skip_items(const char *at, int depth)
{
    for (int first = 1; *at != ']'; first = 0)
        if ((!first && *at++ != ',') || (at = kiln_host_json_skip(at, depth - 1)) == NULL)
            return NULL;
    return kiln_host_json_space(at + 1);
}

/* Behind a value and the white space after it; NULL when it is malformed or nested too deep. */
static inline const char *kiln_host_json_skip(const char *at, int depth)
{
    static const char *const words[] = {"true", "false", "null"};
    at = kiln_host_json_space(at);
    if (*at == '{' || *at == '[') {
        const char *const first = kiln_host_json_space(at + 1);
        if (depth == 0)
            return NULL;
        return *at == '{' ? kiln_host_json_skip_members(first, depth)
                          : kiln_host_json_skip_items(first, depth);
    }
    for (int i = 0; i < 3; i++)
        if (strncmp(at, words[i], strlen(words[i])) == 0)
            return kiln_host_json_space(at + strlen(words[i]));
    at = *at == '"' ? kiln_host_json_skip_string(at) : kiln_host_json_skip_number(at);
    return at == NULL ? NULL : kiln_host_json_space(at);
}

/* Whether a whole text is JSON that is read. */
static inline int kiln_host_json_check(const char *text)
{
    size_t values = 0, length = 0;
    for (; text[length] != 0; length++)
        values += text[length] == '[' || text[length] == '{' || text[length] == ',' ||
                  text[length] == ':';
    if (length > KILN_HOST_JSON_BYTES || values > KILN_HOST_JSON_VALUES)
        return 0;
    const char *const end = kiln_host_json_skip(text, KILN_HOST_JSON_DEPTH);
    return end != NULL && *end == 0;
}

/* The first item of an array or key of an object, NULL when it has none or is of another kind. */
static inline const char *kiln_host_json_first(const char *at, char open)
{
    if (at == NULL || *(at = kiln_host_json_space(at)) != open)
        return NULL;
    at = kiln_host_json_space(at + 1);
    return *at == (open == '{' ? '}' : ']') ? NULL : at;
}

/* The item or key behind this value. */
static inline const char *kiln_host_json_next(const char *value)
{
    const char *at = kiln_host_json_skip(value, KILN_HOST_JSON_DEPTH);
    return *at == ',' ? kiln_host_json_space(at + 1) : NULL;
}

/* The value of a key. */
static inline const char *kiln_host_json_value(const char *key)
{
    return kiln_host_json_space(kiln_host_json_space(kiln_host_json_skip_string(key)) + 1);
}

/* The value of a member; `name` has no quotes or escapes. */
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

/* Number of items of an array, or of members of an object; -1 when the value is neither. */
static inline int kiln_host_json_count(const char *value)
{
    int count = 0;
    if (value == NULL || (*value != '[' && *value != '{'))
        return -1;
    for (const char *at = kiln_host_json_first(value, *value); at != NULL; count++)
        at = kiln_host_json_next(*value == '{' ? kiln_host_json_value(at) : at);
    return count;
}

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

/* Writes a string value as UTF-8, any other value as it is written, with NUL; it takes no more room
 * than the text of the value. */
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
