-- Suspects of the newest revision of each verdict. A newest revision that names nobody has no rows here: the suspects of
-- older revisions were taken back.
CREATE VIEW IF NOT EXISTS newest_suspects AS
SELECT
    suspects.job AS job,
    suspects.verdict_id AS verdict_id,
    suspects.revision AS revision,
    suspects.position AS position,
    suspects.device AS device,
    suspects.rank AS rank,
    suspects.ranks AS ranks,
    suspects.peer AS peer,
    suspects.host AS host,
    suspects.gpu AS gpu,
    suspects.nic AS nic,
    suspects.switch AS switch,
    suspects.probability AS probability
FROM suspects FINAL
INNER JOIN (SELECT job, verdict_id, revision FROM verdicts FINAL) AS newest
    ON suspects.job = newest.job AND suspects.verdict_id = newest.verdict_id AND suspects.revision = newest.revision;
