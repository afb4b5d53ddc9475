/* Reads an artifact container, format version 1, with the same checks as artifact/container.py:
 * every length is checked before the data is read, and the hash before any node.
 *
 * Nodes are read twice: the first pass checks and counts, the second fills one allocation. */
#include "loader.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { MAJOR = 1, MINOR = 0, ALIGN = 64, HEAD = 56, MAX_NAME = 4096, LEAST_FILE = 28 };
enum { MAX_HEADS = 1 << 21 }; /* most bytes besides contents; bounds the allocation */
static const char container_magic[8] = "KILNSET";

typedef struct reader {
    const unsigned char *data;
    uint64_t at, end;
    const char *fault; /* the first error found; reads after it return zeros */
} reader;

/* What is read. The pointers are NULL in the first pass, which only counts. */
typedef struct parts {
    kiln_container *container;
    kiln_artifact *artifacts;
    int *children;
    char *text;
    uint64_t n_artifacts, n_children, n_text, n_content;
} parts;

static const unsigned char *take_bytes(reader *r, uint64_t size, const char *fault)
{
    const unsigned char *found = r->data + r->at;
    if (r->fault == NULL && size > r->end - r->at)
        r->fault = fault;
    if (r->fault != NULL)
        return NULL;
    r->at += size;
    return found;
}

static uint64_t take_number(reader *r, int bytes, const char *fault)
{
    const unsigned char *p = take_bytes(r, (uint64_t)bytes, fault);
    uint64_t value = 0;
    for (int i = 0; p != NULL && i < bytes; i++)
        value |= (uint64_t)p[i] << 8 * i;
    return value;
}

static void skip_padding(reader *r)
{
    const uint64_t size = (ALIGN - r->at % ALIGN) % ALIGN;
    const unsigned char *p = take_bytes(r, size, "padding is cut off");
    for (uint64_t i = 0; p != NULL && i < size; i++)
        if (p[i] != 0)
            r->fault = "padding is not zero";
}

/* Length of the UTF-8 sequence at p (RFC 3629); 0 if it is malformed or a control character. */
static uint64_t utf8_length(const unsigned char *p, uint64_t left)
{
    const unsigned char c = p[0];
    const uint64_t size = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
    if (size > left || c < 0x20)
        return 0;
    for (uint64_t i = 1; i < size; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    if ((c == 0xe0 && p[1] < 0xa0) || (c == 0xed && p[1] > 0x9f) || (c == 0xf0 && p[1] < 0x90) ||
        (c == 0xf4 && p[1] > 0x8f))
        return 0;
    return size;
}

/* Read a name. In the second pass return a NUL-terminated copy, in the first "". */
static const char *read_name(reader *r, parts *b)
{
    const uint64_t size = take_number(r, 4, "a name's length is cut off");
    if (size > MAX_NAME && r->fault == NULL)
        r->fault = "a name is too long";
    const unsigned char *p = take_bytes(r, size, "a name is cut off");
    for (uint64_t i = 0, step; p != NULL && i < size; i += step)
        if ((step = utf8_length(p + i, size - i)) == 0) {
            r->fault = "a name is not UTF-8 text";
            return "";
        }
    char *copy = b->text == NULL ? NULL : b->text + b->n_text;
    b->n_text += size + 1;
    if (copy == NULL || p == NULL)
        return "";
    memcpy(copy, p, size);
    copy[size] = 0;
    return copy;
}

/* Whether a node has this key; the reader does not advance. */
static int key_is(const reader *r, const char *key)
{
    reader peek = *r;
    const uint64_t size = take_number(&peek, 4, "");
    const unsigned char *p = take_bytes(&peek, size, "");
    return p != NULL && size == strlen(key) && memcmp(p, key, size) == 0;
}

/* Whether the key of a node begins with `_`, so that it is not the name of a loader. */
static int key_is_special(const reader *r)
{
    reader peek = *r;
    const uint64_t size = take_number(&peek, 4, "");
    const unsigned char *p = take_bytes(&peek, size, "");
    return p != NULL && size > 0 && p[0] == '_';
}

/* Return a reader for the next node, and advance `r` behind it. */
static reader enter_node(reader *r)
{
    const uint64_t size = take_number(r, 8, "a node's length is cut off");
    reader node = *r;
    if (r->fault == NULL && (size < 8 || size % ALIGN != 0))
        r->fault = "a node's length is not a multiple of 64";
    take_bytes(r, size - 8, "a node is cut off");
    node.end = r->fault == NULL ? r->at : node.at;
    node.fault = r->fault;
    return node;
}

static void leave_node(reader *r, reader *node)
{
    skip_padding(node);
    if (node->fault == NULL && node->at != node->end)
        node->fault = "bytes too many in a node";
    if (r->fault == NULL)
        r->fault = node->fault;
}

static void read_artifact(reader *r, parts *b)
{
    kiln_artifact made = {0};
    take_number(r, 4, "an artifact is cut off");
    made.codegen_id = read_name(r, b);
    made.file_name = read_name(r, b);
    made.target_key = read_name(r, b);
    made.bytes = take_number(r, 8, "a content's length is cut off");
    skip_padding(r);
    made.content = take_bytes(r, made.bytes, "a content is cut off");
    b->n_content += r->fault == NULL ? made.bytes : 0;
    if (r->at - HEAD - b->n_content > MAX_HEADS && r->fault == NULL)
        r->fault = "names and imports take too many bytes";
    if (b->artifacts != NULL && r->fault == NULL)
        b->artifacts[b->n_artifacts] = made;
    b->n_artifacts++;
}

static void read_group(reader *r, parts *b, kiln_group *group, uint64_t minor)
{
    reader node = enter_node(r);
    const int is_lib = key_is(&node, "_lib"), is_new = !is_lib && key_is_special(&node);
    const uint64_t first = b->n_artifacts;
    kiln_group made = {0};
    made.loader = read_name(&node, b);
    made.target_key = "";
    if (is_new && minor <= MINOR)
        node.fault = "an unknown node";
    if (!is_lib && !is_new) {
        const uint64_t count = take_number(&node, 4, "an artifact count is cut off");
        if (node.fault == NULL && count > (node.end - node.at) / LEAST_FILE)
            node.fault = "more artifacts than fit";
        for (uint64_t i = 0; i < count && node.fault == NULL; i++)
            read_artifact(&node, b);
    }
    if (is_new && node.fault == NULL) { /* a node kind of a later minor version: skip it */
        b->n_content += node.end - node.at;
        node.at = node.end;
    }
    leave_node(r, &node);
    if (group == NULL || r->fault != NULL)
        return;
    made.n_artifacts = (int)(b->n_artifacts - first);
    made.artifacts = b->artifacts + first;
    if (made.n_artifacts > 0)
        made.target_key = made.artifacts[0].target_key;
    for (int i = 1; i < made.n_artifacts; i++)
        if (strcmp(made.artifacts[i].target_key, made.target_key) != 0)
            r->fault = "a node has artifacts of several target keys";
    *group = made;
}

/* Read the import tree in CSR form: row pointers, then child indices. */
static void read_tree(reader *r, parts *b, uint64_t groups)
{
    reader node = enter_node(r);
    if (!key_is(&node, "_import_tree") && node.fault == NULL)
        node.fault = "the last node is not the import tree";
    take_bytes(&node, take_number(&node, 4, "a name is cut off"), "a name is cut off");
    if (take_number(&node, 8, "the import tree is cut off") != groups + 1 && node.fault == NULL)
        node.fault = "the import tree has another number of nodes";
    reader rows = node;
    take_bytes(&node, 8 * (groups + 1), "the import tree is cut off");
    const uint64_t children = take_number(&node, 8, "the import tree is cut off");
    reader columns = node;
    if (node.fault == NULL && children > (node.end - node.at) / 8)
        node.fault = "more imports than fit";
    take_bytes(&node, 8 * children, "the import tree is cut off");
    leave_node(r, &node);
    if (r->fault != NULL)
        return;
    uint64_t last = take_number(&rows, 8, "");
    if (last != 0)
        r->fault = "the import tree does not begin at 0";
    for (uint64_t g = 0; g < groups && r->fault == NULL; g++) {
        const uint64_t next = take_number(&rows, 8, "");
        uint64_t above = 0; /* children ascend from 1: nothing imports the root, number 0 */
        if (next < last || next > children) {
            r->fault = "the rows of the import tree descend";
            return;
        }
        if (b->container != NULL) {
            b->container->groups[g].children = b->children + last;
            b->container->groups[g].n_children = (int)(next - last);
        }
        for (; last < next; last++) {
            const uint64_t child = take_number(&columns, 8, "");
            if (child <= above || child >= groups)
                r->fault = "imports are not ascending numbers of nodes";
            if (b->children != NULL && r->fault == NULL)
                b->children[last] = (int)child;
            above = child;
        }
    }
    if (r->fault == NULL && last != children)
        r->fault = "the rows of the import tree end too early";
    b->n_children = children;
}

/* Check that every node is reachable from the root and that there is no cycle, by Kahn's
 * algorithm. */
static const char *check_tree(const kiln_container *c)
{
    const int n = c->n_groups;
    int *importers = calloc((size_t)n * 2, sizeof *importers);
    int n_ready = 1;
    if (importers == NULL)
        return "out of memory";
    int *ready = importers + n;
    for (int g = 0; g < n; g++)
        for (int i = 0; i < c->groups[g].n_children; i++)
            importers[c->groups[g].children[i]]++;
    ready[0] = 0; /* NOLINT(clang-analyzer-security.ArrayBound): n is at least 1 */
    for (int at = 0; at < n_ready; at++) {
        const kiln_group *group = &c->groups[ready[at]];
        for (int i = 0; i < group->n_children; i++)
            if (--importers[group->children[i]] == 0)
                ready[n_ready++] = group->children[i];
    }
    free(importers);
    return n_ready == n ? NULL : "the import tree has a cycle, or nodes that nobody imports";
}

/* Read all nodes; fill the container in `b` unless it is NULL. Return the first fault, or NULL. */
static const char *read_nodes(reader r, parts *b, uint64_t groups, uint64_t minor)
{
    for (uint64_t g = 0; g < groups && r.fault == NULL; g++)
        read_group(&r, b, b->container == NULL ? NULL : &b->container->groups[g], minor);
    if (r.fault == NULL)
        read_tree(&r, b, groups);
    if (r.fault == NULL && r.at != r.end)
        r.fault = "bytes behind the last node";
    if (r.fault == NULL && r.at - HEAD - b->n_content > MAX_HEADS)
        r.fault = "names and imports take too many bytes";
    return r.fault;
}

static kiln_container *allocate(parts *b, uint64_t groups)
{
    const uint64_t head = sizeof(kiln_container) + groups * sizeof(kiln_group);
    const uint64_t artifacts = b->n_artifacts * sizeof(kiln_artifact);
    const uint64_t children = b->n_children * sizeof(int);
    char *memory = malloc((size_t)(head + artifacts + children + b->n_text));
    if (memory == NULL)
        return NULL;
    const parts made = {(kiln_container *)memory,
                        (kiln_artifact *)(memory + head),
                        (int *)(memory + head + artifacts),
                        memory + head + artifacts + children,
                        0, 0, 0, 0};
    *b = made;
    b->container->n_groups = (int)groups;
    /* cppcheck-suppress memleak ; the container is the memory */
    return b->container;
}

static int damaged(const char *what)
{
    return kiln_fail(KILN_ERROR_CONTAINER, "the artifact container is damaged: %s", what);
}

static const char *check_hash(reader *r)
{
    unsigned char digest[32];
    if (take_number(r, 4, "") != 0)
        return "bytes 12 to 15 are not zero";
    if (take_number(r, 8, "") != r->end)
        return "its length is not what its header says";
    kiln_sha256(r->data + HEAD, r->end - HEAD, digest);
    return memcmp(digest, take_bytes(r, 32, ""), 32) == 0 ? NULL : "its hash does not match its content";
}

int kiln_read_container(const void *data, uint64_t size, kiln_container **container)
{
    reader r = {data, sizeof container_magic, size, NULL};
    parts b = {0};
    *container = NULL;
    if (size < HEAD + 8)
        return damaged("it is shorter than its header");
    if (memcmp(data, container_magic, sizeof container_magic) != 0)
        return damaged("it does not begin like one");
    const uint64_t major = take_number(&r, 2, ""), minor = take_number(&r, 2, "");
    if (major != MAJOR)
        return kiln_fail(KILN_ERROR_CONTAINER,
                         "container version %d.%d; this Tensorkiln reads %d.x", (int)major,
                         (int)minor, MAJOR);
    const char *fault = check_hash(&r);
    const uint64_t count = take_number(&r, 8, "");
    if (fault == NULL && (count < 2 || count > (r.end - r.at) / ALIGN || count > INT_MAX / 2))
        fault = "its number of nodes is impossible";
    if (fault == NULL)
        fault = read_nodes(r, &b, count - 1, minor);
    if (fault == NULL && allocate(&b, count - 1) == NULL)
        return kiln_fail(KILN_ERROR_MEMORY, "out of memory for the artifact container");
    if (fault == NULL)
        fault = read_nodes(r, &b, count - 1, minor);
    if (fault == NULL)
        fault = check_tree(b.container);
    if (fault != NULL) {
        free(b.container);
        return damaged(fault);
    }
    *container = b.container;
    return KILN_OK;
}
