/* Loops over operators for the first hop, without Python's lock: what a message's rows say, and their sums.
 *
 * Everything here has a twin in Python, which decides wherever this is not sure: `plain_layout` knows only messages
 * that are laid out as ours are, `reduce` only rows in order and without duplicates, and both leave all others to
 * Python. Offsets that come from a message are checked against its length before anything is read there.
 *
 * Columns of a message are addressed by a layout: an int64 for the rows, then for each field the offset of its data in
 * the message, and that of its validity bitmap or -1 where no value is null.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define UNKNOWN INT64_MIN
#define MOST_FIELDS 64
#define MOST_TIES 64
#define MOST_STRUCTURE 16384 /* metadata of our messages have some 2,000 bytes, most of them names */

/* Fields of commops, by their place in the schema. */
enum { COMMUNICATOR, OPERATOR, SEQUENCE, PEER, START, ELAPSED, SIZE, ITERATION, COMMOPS_FIELDS };

/* Bounds of usable rows: see irregulars/messages/bounds.py, which a test holds these against. */
static const int64_t LATEST_NS = INT64_C(1) << 62;
static const int64_t MOST_EXACT = (INT64_C(1) << 53) - 1;
static const int64_t LAST_ITERATION = INT64_C(1) << 61;
static const int32_t MAX_RANK = (1 << 22) - 1;
enum { SEND = 9, RECV = 10, OPERATORS = 11 };

static inline uint16_t u16_at(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return v; }
static inline uint32_t u32_at(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }
static inline int32_t i32_at(const uint8_t *p) { int32_t v; memcpy(&v, p, 4); return v; }
static inline int64_t i64_at(const uint8_t *p) { int64_t v; memcpy(&v, p, 8); return v; }
static inline int is_set(const uint8_t *bits, int64_t row) { return bits == NULL || (bits[row >> 3] >> (row & 7)) & 1; }

/* --- Arrow's metadata --------------------------------------------------------------------------------------------- */

typedef struct { const uint8_t *base; int64_t size; } Metadata;  /* one flatbuffer */

/* Where a field of a table stands; 0: the table lacks it, -1: the metadata point outside. */
static int64_t field_of(const Metadata *own, int64_t table, int number, int width)
{
    if (table < 0 || table + 4 > own->size) return -1;
    int64_t vtable = table - i32_at(own->base + table);
    if (vtable < 0 || vtable + 4 > own->size) return -1;
    int64_t entry = 4 + 2 * (int64_t)number, length = u16_at(own->base + vtable);
    if (entry + 2 > length) return 0;
    if (vtable + entry + 2 > own->size) return -1;
    int64_t offset = u16_at(own->base + vtable + entry);
    if (offset == 0) return 0;
    return table + offset + width <= own->size ? table + offset : -1;
}

/* Follow an offset to a table, a vector or a text; -1: there is none, or it points outside. */
static int64_t follow(const Metadata *own, int64_t at)
{
    if (at <= 0 || at + 4 > own->size) return -1;
    int64_t to = at + u32_at(own->base + at);
    return to + 4 <= own->size ? to : -1;
}

/* A vector's first element, and how many it has; -1 as above. */
static int64_t vector_of(const Metadata *own, int64_t at, int64_t width, int64_t *count)
{
    int64_t vector = follow(own, at);
    if (vector < 0) return -1;
    *count = u32_at(own->base + vector);
    return vector + 4 + *count * width <= own->size ? vector + 4 : -1;
}

static int number_of(const Metadata *own, int64_t table, int field, int width, int64_t missing, int64_t *value)
{
    int64_t at = field_of(own, table, field, width);
    if (at < 0) return 0;
    *value = missing;
    if (at > 0) {
        const uint8_t *p = own->base + at;
        *value = width == 1 ? *p : width == 2 ? (int16_t)u16_at(p) : width == 4 ? i32_at(p) : i64_at(p);
    }
    return 1;
}

/* The message that begins at `at`: its metadata, its table, the kind of its header and the length of its body. */
static int message_at(const uint8_t *value, int64_t size, int64_t at, Metadata *own, int64_t *header, int64_t *kind,
                      int64_t *body, int64_t *body_bytes)
{
    int64_t version;
    if (at + 8 > size || u32_at(value + at) != 0xFFFFFFFFu) return 0;
    own->size = i32_at(value + at + 4);
    own->base = value + at + 8;
    if (own->size < 8 || own->size > size - at - 8) return 0;
    int64_t message = u32_at(own->base);
    if (!number_of(own, message, 0, 2, 0, &version) || version != 4) return 0; /* V5 */
    if (!number_of(own, message, 1, 1, 0, kind) || !number_of(own, message, 3, 8, 0, body_bytes)) return 0;
    *header = follow(own, field_of(own, message, 2, 4));
    *body = at + 8 + own->size;
    return *header > 0 && *body_bytes >= 0 && *body_bytes <= size - *body;
}

/* Whether a field has the name and the type of the plan: length and letters of the name, kind, bits, sign, null. */
static int is_field(const Metadata *own, int64_t field, const uint8_t *plan)
{
    int64_t count, name = vector_of(own, field_of(own, field, 0, 4), 1, &count);
    const uint8_t *wanted = plan + 1 + plan[0];
    if (name < 0 || count != plan[0] || memcmp(own->base + name, plan + 1, (size_t)count) != 0) return 0;
    int64_t kind, nullable, number;
    if (!number_of(own, field, 1, 1, 0, &nullable) || !number_of(own, field, 2, 1, 0, &kind)) return 0;
    if (kind != wanted[0] || nullable != wanted[3]) return 0;
    if (field_of(own, field, 4, 4) != 0) return 0; /* a dictionary */
    int64_t type = follow(own, field_of(own, field, 3, 4));
    if (type < 0) return 0;
    if (kind == 3) return number_of(own, type, 0, 2, 0, &number) && number == (wanted[1] == 64 ? 2 : 1);
    if (!number_of(own, type, 0, 4, 0, &number) || number != wanted[1]) return 0;
    return number_of(own, type, 1, 1, 0, &number) && number == wanted[2];
}

/* Where the value of the metadata `irregulars` stands in the message; 0: not found. */
static int64_t own_metadata(const Metadata *own, int64_t schema, const uint8_t *value, int64_t *length)
{
    static const char key[] = "irregulars";
    int64_t pairs, first = vector_of(own, field_of(own, schema, 2, 4), 4, &pairs), letters;
    if (first < 0 || pairs != 1) return 0;
    int64_t pair = follow(own, first);
    int64_t name = vector_of(own, field_of(own, pair, 0, 4), 1, &letters);
    if (name < 0 || letters != (int64_t)sizeof key - 1 || memcmp(own->base + name, key, sizeof key - 1) != 0) return 0;
    int64_t text = vector_of(own, field_of(own, pair, 1, 4), 1, length);
    return text < 0 ? 0 : own->base + text - value;
}

/* What a message's metadata say beside the numbers and the text that differ from message to message. */
typedef struct { uint8_t bytes[MOST_STRUCTURE]; int64_t size; } Structure;

/* Note metadata without some of their bytes; 0: there is no room. */
static int note_structure(Structure *all, const Metadata *own, const int64_t (*left_out)[2], int count)
{
    if (own->size > MOST_STRUCTURE - all->size) return 0;
    uint8_t *copy = all->bytes + all->size;
    memcpy(copy, own->base, (size_t)own->size);
    for (int number = 0; number < count; number++) memset(copy + left_out[number][0], 0, (size_t)left_out[number][1]);
    all->size += own->size;
    return 1;
}

static int is_schema(const uint8_t *value, int64_t size, const uint8_t *plan, int fields, int64_t *next,
                     int64_t *header_at, int64_t *header_bytes, Structure *structure)
{
    Metadata own;
    int64_t schema, kind, body, body_bytes, count, endianness;
    if (!message_at(value, size, 0, &own, &schema, &kind, &body, &body_bytes) || kind != 1 || body_bytes != 0) return 0;
    if (!number_of(&own, schema, 0, 2, 0, &endianness) || endianness != 0) return 0;
    int64_t first = vector_of(&own, field_of(&own, schema, 1, 4), 4, &count);
    if (first < 0 || count != fields) return 0;
    for (int field = 0; field < fields; field++) {
        if (!is_field(&own, follow(&own, first + 4 * field), plan)) return 0;
        plan += 1 + plan[0] + 4;
    }
    *header_at = own_metadata(&own, schema, value, header_bytes);
    *next = body;
    if (*header_at <= 0) return 0;
    const int64_t text[1][2] = {{*header_at - (own.base - value), *header_bytes}};
    return note_structure(structure, &own, text, 1);
}

/* The highest of a column's codes of 8 or 16 bits, all of which are known; -1 for other columns. */
static int64_t highest_code(const uint8_t *data, int64_t rows, const uint8_t *wanted)
{
    if (wanted[0] != 2 || wanted[1] > 16 || wanted[2] || wanted[3]) return -1;
    uint16_t highest = 0;
    if (wanted[1] == 8)
        for (int64_t row = 0; row < rows; row++) highest = data[row] > highest ? data[row] : highest;
    else
        for (int64_t row = 0; row < rows; row++) {
            uint16_t code = u16_at(data + 2 * row);
            highest = code > highest ? code : highest;
        }
    return highest;
}

/* Find the columns of the record batch at `at`, and require that the stream ends behind it. */
static int find_columns(const uint8_t *value, int64_t size, int64_t at, const uint8_t *plan, int fields,
                        int64_t most_rows, int64_t *layout, int64_t *highest, Structure *structure)
{
    Metadata own;
    int64_t batch, kind, body, body_bytes, rows, nodes, buffers;
    if (!message_at(value, size, at, &own, &batch, &kind, &body, &body_bytes) || kind != 3) return 0;
    if (size - body - body_bytes != 8 || i64_at(value + body + body_bytes) != INT64_C(0x00000000FFFFFFFF)) return 0;
    if (!number_of(&own, batch, 0, 8, 0, &rows) || rows < 1 || rows > most_rows) return 0;
    if (field_of(&own, batch, 3, 4) != 0 || field_of(&own, batch, 4, 4) != 0) return 0; /* compressed */
    int64_t node = vector_of(&own, field_of(&own, batch, 1, 4), 16, &nodes);
    int64_t buffer = vector_of(&own, field_of(&own, batch, 2, 4), 16, &buffers);
    if (node < 0 || buffer < 0 || nodes != fields || buffers != 2 * (int64_t)fields) return 0;
    layout[0] = rows;
    for (int field = 0; field < fields; field++, plan += 1 + plan[0] + 4) {
        const uint8_t *wanted = plan + 1 + plan[0];
        const uint8_t *own_node = own.base + node + 16 * field, *pair = own.base + buffer + 32 * field;
        int64_t nulls = i64_at(own_node + 8);
        if (i64_at(own_node) != rows || nulls < 0 || nulls > rows || (nulls && !wanted[3])) return 0;
        for (int of_data = 0; of_data < 2; of_data++) {
            int64_t begin = i64_at(pair + 16 * of_data), length = i64_at(pair + 16 * of_data + 8);
            int64_t least = of_data ? rows * (wanted[1] / 8) : nulls ? (rows + 7) / 8 : 0;
            if (begin < 0 || begin % 8 || length < least || begin > body_bytes || length > body_bytes - begin) return 0;
            layout[1 + 2 * field + 1 - of_data] = of_data || nulls ? body + begin : -1;
        }
        highest[field] = highest_code(value + layout[1 + 2 * field], rows, wanted);
    }
    const int64_t message = u32_at(own.base);
    const int64_t numbers[4][2] = {
        {field_of(&own, message, 3, 8), 8}, {field_of(&own, batch, 0, 8), 8},
        {node, 16 * fields}, {buffer, 32 * (int64_t)fields},
    };
    return note_structure(structure, &own, numbers, 4);
}

PyDoc_STRVAR(plain_layout_doc,
"plain_layout(value, plan, fields, most_rows)\n--\n\n"
"Find the columns of an Arrow stream of one batch that is laid out as ours are; None: Arrow has to look itself.\n\n"
"Returns offset and length of the metadata, the layout, for each field the highest of its codes\n"
"or -1, and the structure: the metadata without what differs from message to message. Whether Arrow takes a message\n"
"of this structure, it alone can say.");

static PyObject *plain_layout(PyObject *self, PyObject *args)
{
    const char *value, *plan;
    Py_ssize_t size, plan_bytes;
    int fields;
    long long most_rows;
    if (!PyArg_ParseTuple(args, "y#y#iL", &value, &size, &plan, &plan_bytes, &fields, &most_rows)) return NULL;
    int64_t layout[1 + 2 * MOST_FIELDS], highest[MOST_FIELDS], next, header_at, header_bytes, planned = 0;
    for (int field = 0; field < fields; field++) planned += planned < plan_bytes ? 5 + (uint8_t)plan[planned] : 1;
    if (fields < 1 || fields > MOST_FIELDS || planned != plan_bytes) {
        PyErr_SetString(PyExc_ValueError, "plan must describe each of the fields");
        return NULL;
    }
    const uint8_t *bytes = (const uint8_t *)value, *own_plan = (const uint8_t *)plan;
    Structure structure;
    structure.size = 0;
    if (!is_schema(bytes, size, own_plan, fields, &next, &header_at, &header_bytes, &structure) ||
        !find_columns(bytes, size, next, own_plan, fields, most_rows, layout, highest, &structure))
        Py_RETURN_NONE;
    return Py_BuildValue("LLy#y#y#", (long long)header_at, (long long)header_bytes, (const char *)layout,
                         (Py_ssize_t)((1 + 2 * fields) * sizeof(int64_t)), (const char *)highest,
                         (Py_ssize_t)(fields * sizeof(int64_t)), (const char *)structure.bytes,
                         (Py_ssize_t)structure.size);
}

/* --- columns of commops ------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t rows;
    const uint8_t *data[COMMOPS_FIELDS], *valid[COMMOPS_FIELDS];
} Columns;

static int columns_of(const char *value, Py_ssize_t size, const char *layout, Py_ssize_t layout_bytes, Columns *own)
{
    static const int width[COMMOPS_FIELDS] = {2, 1, 4, 4, 8, 8, 8, 8};
    if (layout_bytes != (Py_ssize_t)((1 + 2 * COMMOPS_FIELDS) * sizeof(int64_t))) return 0;
    const uint8_t *places = (const uint8_t *)layout;
    own->rows = i64_at(places);
    if (own->rows < 0) return 0;
    for (int field = 0; field < COMMOPS_FIELDS; field++) {
        int64_t data = i64_at(places + 8 + 16 * field), valid = i64_at(places + 16 + 16 * field);
        if (data < 0 || data > size || own->rows > (size - data) / width[field]) return 0;
        if (valid != -1 && (valid < 0 || valid > size || (own->rows + 7) / 8 > size - valid)) return 0;
        own->data[field] = (const uint8_t *)value + data;
        own->valid[field] = valid == -1 ? NULL : (const uint8_t *)value + valid;
    }
    return 1;
}

static inline int64_t known_at(const Columns *own, int field, int64_t row)
{
    return is_set(own->valid[field], row) ? i64_at(own->data[field] + 8 * row) : UNKNOWN;
}

typedef struct { int64_t newest_ns, longest_ns, iteration, is_usable, has_unended, runs; } Look;
typedef struct { int64_t iteration, row, first_ns, last_ns; } Run;

/* Whether a length or a size is not known, or within its bounds. */
static inline int is_counted(const Columns *own, int field, int64_t row)
{
    if (!is_set(own->valid[field], row)) return 1;
    int64_t value = i64_at(own->data[field] + 8 * row);
    return value >= 0 && value <= MOST_EXACT;
}

static int is_usable_row(const Columns *own, int64_t row, int64_t start_ns, int64_t iteration)
{
    uint8_t operator = own->data[OPERATOR][row];
    if ((start_ns < 0 && start_ns != UNKNOWN) || start_ns > LATEST_NS) return 0;
    if (iteration != UNKNOWN && (iteration > LAST_ITERATION || iteration < -LAST_ITERATION)) return 0;
    if (!is_counted(own, ELAPSED, row) || !is_counted(own, SIZE, row)) return 0;
    if (operator < SEND) return 1; /* the peer of a collective means nothing */
    if (!is_set(own->valid[PEER], row)) return 0;
    int32_t peer = i32_at(own->data[PEER] + 4 * row);
    return peer >= 0 && peer <= MAX_RANK;
}

/* Look at the rows of one rank; return how many runs were written, or -1 for a code outside of its dictionary. */
static int64_t look_at(const Columns *own, int64_t first, int64_t past, int64_t names, Look *found, Run *runs)
{
    int is_plain = 1;
    int64_t count = 0, last_number = UNKNOWN;
    Look look = {UNKNOWN, -1, UNKNOWN, 1, 0, 0};
    for (int64_t row = first; row < past; row++) {
        if (u16_at(own->data[COMMUNICATOR] + 2 * row) >= names || own->data[OPERATOR][row] >= OPERATORS) return -1;
        int64_t start_ns = known_at(own, START, row), elapsed_ns = known_at(own, ELAPSED, row);
        int64_t iteration = known_at(own, ITERATION, row);
        int has_ended = is_set(own->valid[ELAPSED], row);
        if (start_ns > look.newest_ns) look.newest_ns = start_ns;
        if (has_ended && elapsed_ns > look.longest_ns) look.longest_ns = elapsed_ns;
        if (iteration > look.iteration) look.iteration = iteration;
        if (!has_ended) look.has_unended = 1;
        if (!is_usable_row(own, row, start_ns, iteration)) look.is_usable = 0;
        if (!look.is_usable || !is_plain || iteration == UNKNOWN || start_ns == UNKNOWN) {
            is_plain = 0;
            continue;
        }
        int64_t end_ns = start_ns + (has_ended ? elapsed_ns : 0);
        if (row == first || iteration != last_number) {
            if (row != first && iteration < last_number) {
                is_plain = 0;
                continue;
            }
            runs[count++] = (Run){iteration, row, start_ns, end_ns};
            last_number = iteration;
        } else {
            Run *run = runs + count - 1;
            if (start_ns < run->first_ns) run->first_ns = start_ns;
            if (end_ns > run->last_ns) run->last_ns = end_ns;
        }
    }
    look.runs = is_plain ? count : 0;
    *found = look;
    return look.runs;
}

PyDoc_STRVAR(look_doc,
"look(value, layout, counts, names, looks, runs)\n--\n\n"
"Look at the rows of some ranks of commops: see streams/rank_hop/message_rows.py.\n\n"
"`counts` are the rows of each; `looks` (a row of 6 int64 for each) and `runs` (a row of 4 for each row of the\n"
"message) are written. Returns the number of runs; -1: a code lies outside of its dictionary.");

static PyObject *look(PyObject *self, PyObject *args)
{
    Py_buffer value, layout, counts, looks, runs;
    long long names;
    if (!PyArg_ParseTuple(args, "y*y*y*Lw*w*", &value, &layout, &counts, &names, &looks, &runs)) return NULL;
    Columns own;
    int64_t ranks = counts.len / 8, first = 0, written = 0;
    int is_sound = columns_of(value.buf, value.len, layout.buf, layout.len, &own);
    is_sound = is_sound && looks.len >= ranks * (Py_ssize_t)sizeof(Look) && runs.len >= own.rows * (Py_ssize_t)sizeof(Run);
    if (is_sound) {
        Py_BEGIN_ALLOW_THREADS
        for (int64_t rank = 0; rank < ranks && written >= 0; rank++) {
            int64_t count = i64_at((const uint8_t *)counts.buf + 8 * rank);
            if (count < 0 || count > own.rows - first) {
                is_sound = 0;
                break;
            }
            int64_t more = look_at(&own, first, first + count, names, (Look *)looks.buf + rank, (Run *)runs.buf + written);
            written = more < 0 ? -1 : written + more;
            first += count;
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&value);
    PyBuffer_Release(&layout);
    PyBuffer_Release(&counts);
    PyBuffer_Release(&looks);
    PyBuffer_Release(&runs);
    if (!is_sound) {
        PyErr_SetString(PyExc_ValueError, "layout, counts, looks and runs must fit together");
        return NULL;
    }
    return PyLong_FromLongLong(written);
}

/* --- sums of blocks ----------------------------------------------------------------------------------------------- */

typedef struct { int64_t key, count; double shortest_ns; } Class;

/* The classes of one block, by key: open addressing, a power of two of places, at most half of them taken. */
typedef struct { Class *places; int64_t size, taken; } Classes;

/* What grows while it is written. */
typedef struct { char *bytes; int64_t size, room; } Output;

static int append(Output *out, const void *what, int64_t size)
{
    if (out->size + size > out->room) {
        int64_t room = 2 * out->room + size + 4096;
        char *bytes = realloc(out->bytes, (size_t)room);
        if (bytes == NULL) return 0;
        out->bytes = bytes;
        out->room = room;
    }
    memcpy(out->bytes + out->size, what, (size_t)size);
    out->size += size;
    return 1;
}

static Class *place_of(Classes *own, int64_t key)
{
    uint64_t at = (uint64_t)key * UINT64_C(0x9E3779B97F4A7C15);
    for (at >>= 20;; at++) {
        Class *place = own->places + (at & (uint64_t)(own->size - 1));
        if (place->count == 0 || place->key == key) return place;
    }
}

static int grow(Classes *own)
{
    Classes larger = {calloc((size_t)(2 * own->size), sizeof(Class)), 2 * own->size, own->taken};
    if (larger.places == NULL) return 0;
    for (int64_t place = 0; place < own->size; place++)
        if (own->places[place].count) *place_of(&larger, own->places[place].key) = own->places[place];
    free(own->places);
    *own = larger;
    return 1;
}

static int count_class(Classes *own, int64_t key, double elapsed_ns)
{
    Class *place = place_of(own, key);
    if (place->count == 0) {
        if (2 * (own->taken + 1) > own->size) {
            if (!grow(own)) return 0;
            place = place_of(own, key);
        }
        own->taken++;
        *place = (Class){key, 0, elapsed_ns};
    }
    place->count++;
    if (elapsed_ns < place->shortest_ns) place->shortest_ns = elapsed_ns;
    return 1;
}

static int by_key(const void *one, const void *other)
{
    int64_t a = ((const Class *)one)->key, b = ((const Class *)other)->key;
    return (a > b) - (a < b);
}

/* Write the classes of a block in ascending order, and empty the table. */
static int write_classes(Classes *own, Output *out)
{
    int64_t count = 0, begin = out->size;
    for (int64_t place = 0; count < own->taken; place++) {
        if (!own->places[place].count) continue;
        if (!append(out, own->places + place, sizeof(Class))) return 0;
        own->places[place].count = 0;
        count++;
    }
    if (own->taken > 1) qsort(out->bytes + begin, (size_t)own->taken, sizeof(Class), by_key);
    own->taken = 0;
    return 1;
}

static void clear_classes(Classes *own)
{
    memset(own->places, 0, (size_t)own->size * sizeof(Class));
    own->taken = 0;
}

typedef struct { int64_t source, first, past, offset; } Cut;
typedef struct { int64_t cuts, blocks; } Closing;
typedef struct { int64_t first_ns, last_ns, operators, offsets, classes; double work_ns, communication_ns; } Block;

typedef struct {
    const Columns *sources;
    const int64_t *code_begins;
    const Cut *cuts;
    const int64_t *numbers, *free_ns, *codes;
    const uint8_t *is_next, *is_wide;
    int64_t source_count, code_count, wide_count;
    Block *blocks;
    Output offsets, classes;
    Classes table;
} Reduction;

enum { DONE = 0, ODD = 1, NO_MEMORY = 2 };

/* The row's class as `pack_class` has it, with the communicator's code among all names; -1: no such code. */
static inline int64_t class_of(const Reduction *own, const Columns *source, int64_t code_begin, int64_t row)
{
    int64_t code = code_begin + u16_at(source->data[COMMUNICATOR] + 2 * row);
    if (code >= own->code_count) return -1;
    int64_t shared = own->codes[code];
    if (shared < 0 || shared >= own->wide_count) return -1;
    int64_t operator = source->data[OPERATOR][row];
    int has_peer = operator >= SEND && is_set(source->valid[PEER], row);
    return (shared << 33) | (operator << 29) | (has_peer ? (int64_t)i32_at(source->data[PEER] + 4 * row) + 1 : 0);
}

/* Whether a row tells of the same operator as one of those before it that began at the same time. */
static int is_repeated(const Reduction *own, const Columns *source, int64_t code_begin, int64_t first, int64_t row)
{
    int64_t key = class_of(own, source, code_begin, row);
    uint32_t sequence = u32_at(source->data[SEQUENCE] + 4 * row);
    for (int64_t other = first; other < row; other++)
        if (u32_at(source->data[SEQUENCE] + 4 * other) == sequence && class_of(own, source, code_begin, other) == key)
            return 1;
    return 0;
}

/* Where the walk through a closing's rows stands. */
typedef struct {
    int64_t first_block, block, past_block;
    int64_t latest_ns;     /* the latest end so far in the block; before its first row, when the rank was free */
    int64_t last_start_ns; /* of the row before this one, in this block */
    int64_t tied;          /* the first row of the cut that began then; -1: it lies in another cut */
} Walk;

/* Write the classes of the block, and go on to the next one. */
static int leave_block(Reduction *own, Walk *walk)
{
    own->blocks[walk->block].classes = own->table.taken;
    walk->block++;
    walk->last_start_ns = UNKNOWN;
    return write_classes(&own->table, &own->classes) ? DONE : NO_MEMORY;
}

/* Note that a block has rows in the message at `offset`; messages come in the order of their offsets. */
static int note_offset(Reduction *own, Block *sums, int64_t offset)
{
    int64_t before = sums->offsets ? i64_at((uint8_t *)own->offsets.bytes + own->offsets.size - 8) : -1;
    if (sums->offsets && before >= offset) return before == offset ? DONE : ODD;
    sums->offsets++;
    return append(&own->offsets, &offset, 8) ? DONE : NO_MEMORY;
}

static void begin_block(const Reduction *own, Walk *walk, int64_t start_ns)
{
    const Block *before = own->blocks + walk->block - 1;
    int is_after = walk->block > walk->first_block && own->is_next[walk->block] && before->operators > 0;
    int64_t free_ns = is_after ? before->last_ns : own->free_ns[walk->block];
    own->blocks[walk->block].first_ns = start_ns;
    walk->latest_ns = free_ns == UNKNOWN ? start_ns : free_ns;
}

/* Whether a row comes in its order, and tells of no operator of which a row before it told. */
static int is_in_order(const Reduction *own, Walk *walk, const Columns *source, const Cut *cut, int64_t row,
                       int64_t start_ns)
{
    if (start_ns < walk->last_start_ns) return 0;
    if (start_ns > walk->last_start_ns || own->blocks[walk->block].operators == 0) {
        walk->tied = row;
        return 1;
    }
    if (walk->tied < 0 || row - walk->tied > MOST_TIES) return 0;
    return !is_repeated(own, source, own->code_begins[cut->source], walk->tied, row);
}

static int add_row(Reduction *own, Walk *walk, const Columns *source, int64_t row, int64_t start_ns, int64_t key)
{
    Block *sums = own->blocks + walk->block;
    int64_t elapsed_ns = i64_at(source->data[ELAPSED] + 8 * row), end_ns = start_ns + elapsed_ns;
    if (sums->operators == 0) begin_block(own, walk, start_ns);
    if (start_ns > walk->latest_ns) sums->work_ns += (double)(start_ns - walk->latest_ns);
    if (sums->operators == 0 || end_ns > walk->latest_ns) walk->latest_ns = end_ns;
    if (end_ns > sums->last_ns) sums->last_ns = end_ns;
    sums->communication_ns += (double)elapsed_ns;
    sums->operators++;
    walk->last_start_ns = start_ns;
    int is_recv = source->data[OPERATOR][row] == RECV, has_peer = (key & ((1 << 29) - 1)) != 0;
    if (!is_recv && (has_peer || !own->is_wide[key >> 33])) return DONE;
    return count_class(&own->table, key, (double)elapsed_ns) ? DONE : NO_MEMORY;
}

/* Add the rows of one cut to their blocks. */
static int reduce_cut(Reduction *own, Walk *walk, const Cut *cut)
{
    if (cut->source < 0 || cut->source >= own->source_count) return ODD;
    const Columns *source = own->sources + cut->source;
    if (cut->first < 0 || cut->first > cut->past || cut->past > source->rows) return ODD;
    int64_t noted = -1, code_begin = own->code_begins[cut->source];
    int status = DONE;
    walk->tied = -1;
    for (int64_t row = cut->first; row < cut->past && status == DONE; row++) {
        int64_t iteration = i64_at(source->data[ITERATION] + 8 * row), start_ns = i64_at(source->data[START] + 8 * row);
        while (iteration != own->numbers[walk->block]) {
            if (leave_block(own, walk) != DONE) return NO_MEMORY;
            if (walk->block == walk->past_block) return ODD; /* it goes back, or is none of these */
        }
        int64_t key = class_of(own, source, code_begin, row);
        if (key < 0 || !is_set(source->valid[ELAPSED], row)) return ODD;
        if (!is_in_order(own, walk, source, cut, row, start_ns)) return ODD;
        if (noted != walk->block) status = note_offset(own, own->blocks + (noted = walk->block), cut->offset);
        if (status == DONE) status = add_row(own, walk, source, row, start_ns, key);
    }
    return status;
}

/* Reduce the blocks of one closing; ODD: its rows are not in order, or tell of an operator twice or before its end. */
static int reduce_closing(Reduction *own, const Cut *cuts, int64_t cut_count, int64_t first_block, int64_t past_block)
{
    Walk walk = {first_block, first_block, past_block, UNKNOWN, UNKNOWN, -1};
    for (int64_t b = first_block; b < past_block; b++) own->blocks[b] = (Block){UNKNOWN, UNKNOWN, 0, 0, 0, 0.0, 0.0};
    for (int64_t number = 0; number < cut_count; number++) {
        int status = reduce_cut(own, &walk, cuts + number);
        if (status != DONE) return status;
    }
    return leave_block(own, &walk);
}

/* Columns of all messages; NULL with an error set where they are no pairs of bytes that fit together. */
static Columns *sources_of(PyObject *values, PyObject *layouts, int64_t *count)
{
    *count = PyList_Size(values);
    if (*count < 0 || PyList_Size(layouts) != *count) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "values and layouts must be equally many");
        return NULL;
    }
    Columns *found = malloc((size_t)(*count + 1) * sizeof(Columns));
    if (found == NULL) return (Columns *)PyErr_NoMemory();
    for (int64_t source = 0; source < *count; source++) {
        char *value, *layout;
        Py_ssize_t size, layout_bytes;
        if (PyBytes_AsStringAndSize(PyList_GetItem(values, source), &value, &size) < 0 ||
            PyBytes_AsStringAndSize(PyList_GetItem(layouts, source), &layout, &layout_bytes) < 0) {
            free(found);
            return NULL;
        }
        if (!columns_of(value, size, layout, layout_bytes, found + source)) {
            PyErr_SetString(PyExc_ValueError, "layout must be that of its message");
            free(found);
            return NULL;
        }
    }
    return found;
}

/* Reduce all closings, and note in `is_odd` which of them numpy has to do; ODD: some are, or the counts don't fit. */
static int reduce_all(Reduction *own, const Closing *closings, int64_t closing_count, int64_t cut_count,
                      int64_t block_count, char *is_odd)
{
    int64_t cut = 0, block = 0;
    int status = DONE, found;
    own->table = (Classes){calloc(64, sizeof(Class)), 64, 0};
    if (own->table.places == NULL) return NO_MEMORY;
    for (int64_t number = 0; number < closing_count && status != NO_MEMORY; number++) {
        const Closing *closing = closings + number;
        if (closing->cuts < 0 || closing->blocks < 1 || closing->cuts > cut_count - cut ||
            closing->blocks > block_count - block)
            break;
        found = reduce_closing(own, own->cuts + cut, closing->cuts, block, block + closing->blocks);
        if (found == ODD) clear_classes(&own->table); /* of the block in which it was left */
        if (found != DONE) status = found;
        is_odd[number] = found == ODD;
        cut += closing->cuts;
        block += closing->blocks;
    }
    free(own->table.places);
    return status == DONE && (cut != cut_count || block != block_count) ? ODD : status;
}

PyDoc_STRVAR(reduce_doc,
"reduce(values, layouts, code_begins, cuts, closings, numbers, is_next, free_ns, codes, is_wide)\n--\n\n"
"Sum up the operators of some closings: see streams/rank_hop/operator_reduction.py.\n\n"
"Returns bytes: rows of 7 values for each block, the offsets, and rows of 3 values for each class. Or a byte for each\n"
"closing, 1 where numpy has to do it, if it has to do some of them.");

static PyObject *reduce(PyObject *self, PyObject *args)
{
    PyObject *values, *layouts, *result = NULL;
    Py_buffer in[8]; /* code_begins, cuts, closings, numbers, is_next, free_ns, codes, is_wide */
    if (!PyArg_ParseTuple(args, "O!O!y*y*y*y*y*y*y*y*", &PyList_Type, &values, &PyList_Type, &layouts, in, in + 1,
                          in + 2, in + 3, in + 4, in + 5, in + 6, in + 7))
        return NULL;
    int64_t block_count = in[3].len / 8, cut_count = in[1].len / (Py_ssize_t)sizeof(Cut);
    Reduction own = {
        .code_begins = in[0].buf, .cuts = in[1].buf, .numbers = in[3].buf, .is_next = in[4].buf, .free_ns = in[5].buf,
        .codes = in[6].buf, .is_wide = in[7].buf, .code_count = in[6].len / 8, .wide_count = in[7].len,
    };
    Columns *sources = sources_of(values, layouts, &own.source_count);
    if (sources == NULL) goto release;
    if (in[0].len / 8 != own.source_count || in[4].len != block_count || in[5].len / 8 != block_count) {
        PyErr_SetString(PyExc_ValueError, "each source must have a beginning of codes, and each block all values");
        goto release;
    }
    int status = NO_MEMORY;
    own.sources = sources;
    own.blocks = malloc((size_t)(block_count + 1) * sizeof(Block));
    Py_ssize_t closing_count = in[2].len / (Py_ssize_t)sizeof(Closing);
    char *is_odd = calloc((size_t)(closing_count + 1), 1);
    if (own.blocks != NULL && is_odd != NULL) {
        Py_BEGIN_ALLOW_THREADS
        status = reduce_all(&own, in[2].buf, closing_count, cut_count, block_count, is_odd);
        Py_END_ALLOW_THREADS
    }
    if (status == NO_MEMORY) PyErr_NoMemory();
    else if (status == ODD) result = PyBytes_FromStringAndSize(is_odd, closing_count);
    else
        result = Py_BuildValue("y#y#y#", (char *)own.blocks, (Py_ssize_t)(block_count * (int64_t)sizeof(Block)),
                               own.offsets.bytes ? own.offsets.bytes : "", (Py_ssize_t)own.offsets.size,
                               own.classes.bytes ? own.classes.bytes : "", (Py_ssize_t)own.classes.size);
    free(is_odd);
    free(own.blocks);
    free(own.offsets.bytes);
    free(own.classes.bytes);
release:
    free(sources);
    for (int number = 0; number < 8; number++) PyBuffer_Release(in + number);
    return result;
}

/* --- the module --------------------------------------------------------------------------------------------------- */

static PyMethodDef METHODS[] = {
    {"plain_layout", plain_layout, METH_VARARGS, plain_layout_doc},
    {"look", look, METH_VARARGS, look_doc},
    {"reduce", reduce, METH_VARARGS, reduce_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, .m_name = "irregulars._kernel",
    .m_doc = "Loops over operators, compiled; see irregulars/compiled.py.", .m_size = -1, .m_methods = METHODS,
};

PyMODINIT_FUNC PyInit__kernel(void) { return PyModule_Create(&MODULE); }
