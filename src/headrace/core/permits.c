/* The table of permits: who prepares, and who waits for a turn. The caller holds the table's lock.

   Its counterpart in Python, with the layout and the rules, is engine/permit_table.py. */
#include "native.h"

#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LIMIT = 1, WAITING = 2, MOST = 3 };           /* of the header */
enum { HOLDER, START, TOKEN, SINCE, CELL };          /* of a cell, and its words */
enum { STATE, DEADLINE, PID, WHO, LATER, WAIT };     /* of one who waits, and its words */
enum { STATE_FREE, STATE_WAITS, STATE_GIVEN };

typedef struct {
    Py_buffer header_view, cells_view, waits_view;
    int64_t *header, *cells, *waits;
    Py_ssize_t cell_count, wait_count;
} Table;

static int open_one(PyObject *object, Py_ssize_t least, Py_buffer *view, int64_t **words) {
    if (PyObject_GetBuffer(object, view, PyBUF_WRITABLE) < 0) return -1;
    if (view->len < least * 8 || ((uintptr_t)view->buf & 7)) {
        PyBuffer_Release(view);
        PyErr_SetString(PyExc_ValueError, "no table of permits");
        return -1;
    }
    *words = view->buf;
    return 0;
}

static int open_table(PyObject *header, PyObject *cells, PyObject *waits, Table *table) {
    if (open_one(header, MOST + 1, &table->header_view, &table->header) < 0) return -1;
    if (open_one(cells, CELL, &table->cells_view, &table->cells) < 0) goto header;
    if (open_one(waits, WAIT, &table->waits_view, &table->waits) < 0) goto cells;
    table->cell_count = table->cells_view.len / (8 * CELL);
    table->wait_count = table->waits_view.len / (8 * WAIT);
    return 0;
cells:
    PyBuffer_Release(&table->cells_view);
header:
    PyBuffer_Release(&table->header_view);
    return -1;
}

static void close_table(Table *table) {
    PyBuffer_Release(&table->waits_view);
    PyBuffer_Release(&table->cells_view);
    PyBuffer_Release(&table->header_view);
}

/* Cells that can be in use: the first that is free is taken, so there was never a later one than there were at once. */
static Py_ssize_t used_cells(const Table *table) {
    int64_t most = table->header[MOST] + 1;
    return most < 1 ? 1 : most > table->cell_count ? table->cell_count : (Py_ssize_t)most;
}

static int64_t held(const Table *table) {
    Py_ssize_t used = used_cells(table);
    int64_t count = 0;
    for (Py_ssize_t cell = 0; cell < used; cell++) count += table->cells[cell * CELL + HOLDER] != 0;
    return count;
}

/* Cells that a process has, but for one of them (-1: none is left out). */
static int64_t held_by(const Table *table, int64_t pid, Py_ssize_t but) {
    Py_ssize_t used = used_cells(table);
    int64_t count = 0;
    for (Py_ssize_t cell = 0; cell < used; cell++)
        count += table->cells[cell * CELL + HOLDER] == pid && cell != but;
    return count;
}

/* The one who waits with the earliest deadline, and that; -1: nobody waits. */
static Py_ssize_t first_waiting(const Table *table, int64_t *deadline) {
    Py_ssize_t first = -1;
    int64_t left = table->header[WAITING];
    for (Py_ssize_t place = 0; place < table->wait_count && left > 0; place++) {
        const int64_t *one = table->waits + place * WAIT;
        if (one[STATE] != STATE_WAITS) continue;
        left--;
        int64_t due = one[DEADLINE] + one[LATER] * held_by(table, one[PID], -1);
        if (first < 0 || due < *deadline) {
            first = place;
            *deadline = due;
        }
    }
    return first;
}

static int someone_before(const Table *table, int64_t deadline) {
    int64_t due = 0;
    return first_waiting(table, &due) >= 0 && due < deadline;
}

static Py_ssize_t free_cell(const Table *table) {
    int64_t limit = table->header[LIMIT];
    if (limit < 1) limit = 1;
    if (limit > table->cell_count) limit = table->cell_count;
    if (held(table) >= limit) return -1;
    for (Py_ssize_t cell = 0; cell < limit; cell++)
        if (!table->cells[cell * CELL + HOLDER]) return cell;
    return -1;
}

static void write_cell(Table *table, Py_ssize_t cell, int64_t pid, int64_t start, int64_t token, int64_t now) {
    int64_t *words = table->cells + cell * CELL;
    words[HOLDER] = pid;
    words[START] = start;
    words[TOKEN] = token;
    words[SINCE] = now;
    int64_t count = held(table);
    if (count > table->header[MOST]) table->header[MOST] = count;
}

static void serve(Table *table, int64_t now) {
    while (table->header[WAITING] > 0) {
        Py_ssize_t cell = free_cell(table);
        if (cell < 0) return;
        int64_t due = 0;
        Py_ssize_t place = first_waiting(table, &due);
        if (place < 0) {
            table->header[WAITING] = 0;
            return;
        }
        int64_t *one = table->waits + place * WAIT;
        int64_t pid = one[PID], token = one[WHO];
        /* Told first: were this process killed in between, a permit too many is out, and none is lost. */
        __atomic_store_n(&one[STATE], STATE_GIVEN + cell, __ATOMIC_SEQ_CST);
        table->header[WAITING]--;
        write_cell(table, cell, pid, 0, token, now);
        syscall(SYS_futex, (uint32_t *)&one[STATE], FUTEX_WAKE, 1, NULL, NULL, 0);
    }
}

static PyObject *permits_take(PyObject *self, PyObject *args) {
    PyObject *header, *cells, *waits;
    long long deadline, later, pid, start, token, now;
    if (!PyArg_ParseTuple(args, "OOOLLLLLL", &header, &cells, &waits, &deadline, &later, &pid, &start, &token, &now))
        return NULL;
    Table table;
    if (open_table(header, cells, waits, &table) < 0) return NULL;
    int64_t due = deadline + later * held_by(&table, pid, -1);
    Py_ssize_t found = someone_before(&table, due) ? -1 : free_cell(&table);
    if (found >= 0) {
        write_cell(&table, found, pid, start, token, now);
    } else {
        for (Py_ssize_t place = 0; place < table.wait_count; place++) {
            int64_t *one = table.waits + place * WAIT;
            if (one[STATE] != STATE_FREE) continue;
            one[DEADLINE] = deadline;
            one[PID] = pid;
            one[WHO] = token;
            one[LATER] = later;
            __atomic_store_n(&one[STATE], STATE_WAITS, __ATOMIC_SEQ_CST);
            table.header[WAITING]++;
            found = -2 - place;
            break;
        }
    }
    close_table(&table);
    return PyLong_FromSsize_t(found);
}

static PyObject *permits_renew(PyObject *self, PyObject *args) {
    PyObject *header, *cells, *waits;
    Py_ssize_t cell;
    long long token, deadline, later, now;
    if (!PyArg_ParseTuple(args, "OOOnLLLL", &header, &cells, &waits, &cell, &token, &deadline, &later, &now)) return NULL;
    Table table;
    if (open_table(header, cells, waits, &table) < 0) return NULL;
    int kept = cell >= 0 && cell < table.cell_count && table.cells[cell * CELL + TOKEN] == token;
    if (kept) {
        int64_t due = deadline + later * held_by(&table, table.cells[cell * CELL + HOLDER], cell);
        kept = !someone_before(&table, due);
    }
    if (kept) table.cells[cell * CELL + SINCE] = now;
    close_table(&table);
    return PyBool_FromLong(kept);
}

static PyObject *permits_give(PyObject *self, PyObject *args) {
    PyObject *header, *cells, *waits;
    Py_ssize_t cell;
    long long token, now;
    if (!PyArg_ParseTuple(args, "OOOnLL", &header, &cells, &waits, &cell, &token, &now)) return NULL;
    Table table;
    if (open_table(header, cells, waits, &table) < 0) return NULL;
    if (cell >= 0 && cell < table.cell_count && table.cells[cell * CELL + TOKEN] == token)
        for (int word = 0; word < CELL; word++) table.cells[cell * CELL + word] = 0;
    serve(&table, now);
    close_table(&table);
    Py_RETURN_NONE;
}

PyMethodDef permits_methods[] = {
    {"permits_take", permits_take, METH_VARARGS,
     "permits_take(header, cells, waits, deadline, later, pid, start, token, now): see engine/permit_table.py"},
    {"permits_renew", permits_renew, METH_VARARGS,
     "permits_renew(header, cells, waits, cell, token, deadline, later, now): see engine/permit_table.py"},
    {"permits_give", permits_give, METH_VARARGS,
     "permits_give(header, cells, waits, cell, token, now): see engine/permit_table.py"},
    {NULL, NULL, 0, NULL},
};
