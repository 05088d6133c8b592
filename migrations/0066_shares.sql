-- Turns go by namespace first, and within one by token. What a namespace has searched is added up in rows of its own, under its name, which no
-- turn has: those have a slash. A claim so reads as much of a namespace with a thousand tokens as of one with a single token.
INSERT INTO searched (turn, since, slot, seconds)
SELECT substr(turn, 1, instr(turn, '/') - 1), since, 0, SUM(seconds) FROM searched GROUP BY 1, 2;

DROP TRIGGER jobs_searched;
CREATE TRIGGER jobs_searched AFTER UPDATE OF state ON jobs
WHEN NEW.state IN ('succeeded', 'failed', 'cancelled') AND OLD.state IN ('queued', 'running')
BEGIN
    INSERT INTO searched (turn, since, slot, seconds)
    VALUES (NEW.turn, NEW.finished_at / 300000 * 300000, 0, MAX(NEW.search_seconds, 1.0)),
        (NEW.namespace, NEW.finished_at / 300000 * 300000, 0, MAX(NEW.search_seconds, 1.0))
    ON CONFLICT (turn, since, slot) DO UPDATE SET seconds = seconds + excluded.seconds;
END;
