-- What migration 66 of SQLite makes.
INSERT INTO searched (turn, since, slot, seconds)
SELECT substr(turn, 1, strpos(turn, '/') - 1), since, 0, SUM(seconds) FROM searched GROUP BY 1, 2;

CREATE OR REPLACE FUNCTION job_searched() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    own BIGINT := 4 + pg_backend_pid();
    at BIGINT := clock_ms() / 300000 * 300000;
BEGIN
    FOR free IN 0..3 LOOP
        IF pg_try_advisory_xact_lock(hashtextextended(TG_TABLE_SCHEMA || ' searched', free)) THEN
            own := free;
            EXIT;
        END IF;
    END LOOP;
    INSERT INTO searched (turn, since, slot, seconds)
    VALUES (NEW.turn, at, own, GREATEST(NEW.search_seconds, 1.0)), (NEW.namespace, at, own, GREATEST(NEW.search_seconds, 1.0))
    ON CONFLICT (turn, since, slot) DO UPDATE SET seconds = searched.seconds + excluded.seconds;
    RETURN NULL;
END $$;
