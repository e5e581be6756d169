"""SQLite and PostgreSQL with one small face. Self-contained, standard library only; sent into machines by others.

    database = connect("postgresql")        or connect("sqlite", "app.db")
    database.script(sql)                    several statements
    database.rows(sql)                      one statement: its rows, as lists of plain values

PostgreSQL is spoken to in its own protocol (version 3, simple queries over its socket) and not by psql, in which a line
of a script can be a shell command. Its search path is that of the connection, whatever a role was altered to.
"""

import socket
import struct

SOCKET = "/tmp/.s.PGSQL.5432"
LONGEST_S = 600.0
"""of one answer; whoever sent this guest has a deadline of their own"""
BOOL, INTEGERS, FLOATS = 16, (20, 21, 23, 26), (700, 701)


class Refused(Exception):
    """The database's own words; `constraint` names what was broken, "" = something else."""

    def __init__(self, message, constraint=""):
        super().__init__(message)
        self.constraint = constraint


class Sqlite:
    CONSTRAINTS = {
        "SQLITE_CONSTRAINT_UNIQUE": "unique",
        "SQLITE_CONSTRAINT_PRIMARYKEY": "unique",
        "SQLITE_CONSTRAINT_ROWID": "unique",
        "SQLITE_CONSTRAINT_NOTNULL": "not null",
        "SQLITE_CONSTRAINT_FOREIGNKEY": "foreign key",
        "SQLITE_CONSTRAINT_CHECK": "check",
    }

    def __init__(self, path):
        import sqlite3  # here: who asks PostgreSQL does not wait for it

        self.error = sqlite3.Error
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.execute("pragma foreign_keys = on")
        # A script changes this database and no other file.
        refuse, allow, attach = sqlite3.SQLITE_DENY, sqlite3.SQLITE_OK, sqlite3.SQLITE_ATTACH
        self.db.set_authorizer(lambda action, *_: refuse if action == attach else allow)

    def script(self, sql):
        self._do(self.db.executescript, sql)

    def rows(self, sql):
        return [list(row) for row in self._do(lambda: self.db.execute(sql).fetchall())]

    def _do(self, act, *what):
        try:
            return act(*what)
        except self.error as error:
            name = getattr(error, "sqlite_errorname", "")
            raise Refused(f"{type(error).__name__}: {error}", self.CONSTRAINTS.get(name, "")) from None

    def close(self):
        self.db.close()


class Postgres:
    CONSTRAINTS = {"23505": "unique", "23502": "not null", "23503": "foreign key", "23514": "check"}

    def __init__(self, place):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(LONGEST_S)
        self.left = b""
        try:
            self.sock.connect(place)
            words = [
                "user",
                "app",
                "database",
                "app",
                "client_encoding",
                "UTF8",
                "options",
                "-c search_path=public",
                "",
            ]
            body = struct.pack("!i", 196608) + b"".join(word.encode() + b"\0" for word in words)
            self.sock.sendall(struct.pack("!i", len(body) + 4) + body)
            self._answers()
        except BaseException:
            self.sock.close()
            raise

    def script(self, sql):
        self.rows(sql)

    def rows(self, sql):
        if "\0" in sql:
            raise Refused("a NUL is no SQL")
        text = sql.encode() + b"\0"
        self.sock.sendall(b"Q" + struct.pack("!i", len(text) + 4) + text)
        return self._answers()

    def close(self):
        self.sock.close()

    def _answers(self):
        """Until it is ready for the next question: the rows of the last statement that had any."""
        rows, types, refused = [], [], None
        while True:
            kind, body = self._message()
            if kind == b"T":
                rows, types = [], self._types(body)
            elif kind == b"D":
                rows.append(self._row(body, types))
            elif kind == b"E":
                refused = self._refusal(body)
            elif kind == b"G":  # it waits for rows of `copy from stdin`
                self.sock.sendall(b"f" + struct.pack("!i", 5) + b"\0")
            elif kind == b"R" and body != struct.pack("!i", 0):
                raise Refused("it wants a password")
            elif kind == b"Z" or (kind == b"E" and refused.fatal):
                if refused is not None:
                    raise refused
                return rows

    def _message(self):
        head = self._take(5)
        return head[:1], self._take(struct.unpack("!i", head[1:])[0] - 4)

    def _take(self, size):
        while len(self.left) < size:
            more = self.sock.recv(65536)
            if not more:
                raise Refused("the server closed the connection")
            self.left += more
        taken, self.left = self.left[:size], self.left[size:]
        return taken

    @staticmethod
    def _types(body):
        found, at = [], 2
        for _ in range(struct.unpack_from("!h", body)[0]):
            at = body.index(b"\0", at) + 1
            found.append(struct.unpack_from("!i", body, at + 6)[0])
            at += 18
        return found

    @staticmethod
    def _row(body, types):
        row, at = [], 2
        for oid in types:
            (size,) = struct.unpack_from("!i", body, at)
            at += 4
            if size < 0:
                row.append(None)
                continue
            text, at = body[at : at + size].decode(errors="replace"), at + size
            if oid in INTEGERS:
                row.append(int(text))
            elif oid in FLOATS:
                row.append(float(text))
            else:
                row.append(text == "t" if oid == BOOL else text)
        return row

    def _refusal(self, body):
        words = {part[:1]: part[1:].decode(errors="replace") for part in body.split(b"\0") if part}
        error = Refused(f"{words.get(b'S')}: {words.get(b'M')}", self.CONSTRAINTS.get(words.get(b"C"), ""))
        error.fatal = words.get(b"V", words.get(b"S")) in ("FATAL", "PANIC")
        return error


def connect(kind, path=""):
    return Sqlite(path) if kind == "sqlite" else Postgres(path or SOCKET)
