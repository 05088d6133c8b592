-- What the compiler made of each kernel text, so that the next matrix is pruned before anything is compiled. A kernel is
-- named by a digest of its text, its headers' digest and the compiler: another compiler is another kernel.
--
-- The first figures of a kernel stay, with the time they were learnt: a job that is taken up again sees what was known
-- when it began, and chooses as it did then. What has not been compiled for longest goes first when there are too many.

CREATE TABLE kernel_figures (
    device_class TEXT    NOT NULL,
    kernel       BLOB    NOT NULL CHECK (length(kernel) = 32),
    registers    INTEGER NOT NULL CHECK (registers >= 0),
    local_bytes  INTEGER NOT NULL CHECK (local_bytes >= 0),
    learnt_at    INTEGER NOT NULL,
    seen_at      INTEGER NOT NULL,
    PRIMARY KEY (device_class, kernel)
) STRICT, WITHOUT ROWID;

CREATE INDEX kernel_figures_oldest ON kernel_figures (device_class, seen_at, kernel);
