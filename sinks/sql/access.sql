-- Three users of ClickHouse: who writes, who reads, who changes tables. Run it as an administrator, once; a second time
-- changes nothing:
--
--   irregulars sql --print-access | clickhouse-client --user default
--
-- Nobody can log in as them yet. Then, for each, with the SHA-256 of its password in hexadecimal:
--
--   ALTER USER irregulars_reader IDENTIFIED WITH sha256_hash BY '…' HOST ANY;   -- or HOST IP '10.0.0.0/8'
CREATE DATABASE IF NOT EXISTS irregulars;

-- `irregulars sql`, dashboards. readonly 2: nothing is written, and a query's own settings may be set, within these bounds
-- (Grafana sets max_execution_time).
CREATE SETTINGS PROFILE IF NOT EXISTS irregulars_reader SETTINGS
    readonly = 2,
    max_execution_time = 60 MAX 600,
    max_memory_usage = 4000000000 MAX 8000000000,
    max_threads = 4 MAX 8;

-- The workers. What a worker sends is one insert of at most 100,000 rows a table, and now and then a look at what is there.
CREATE SETTINGS PROFILE IF NOT EXISTS irregulars_writer SETTINGS
    max_execution_time = 300 MAX 600,
    max_memory_usage = 4000000000 MAX 8000000000;

-- irregulars sql --create-tables, when a new release is installed.
CREATE SETTINGS PROFILE IF NOT EXISTS irregulars_admin SETTINGS
    max_execution_time = 3600 MAX 86400;

CREATE USER IF NOT EXISTS irregulars_reader IDENTIFIED WITH no_password HOST NONE
    SETTINGS PROFILE 'irregulars_reader';

CREATE USER IF NOT EXISTS irregulars_writer IDENTIFIED WITH no_password HOST NONE
    SETTINGS PROFILE 'irregulars_writer';

CREATE USER IF NOT EXISTS irregulars_admin IDENTIFIED WITH no_password HOST NONE
    SETTINGS PROFILE 'irregulars_admin';

-- A dashboard that went wild stops here, and takes no worker with it: each user has its own.
CREATE QUOTA IF NOT EXISTS irregulars_reader KEYED BY user_name
    FOR INTERVAL 1 minute MAX queries = 1200, errors = 200,
    FOR INTERVAL 1 hour MAX execution_time = 7200
    TO irregulars_reader;

CREATE QUOTA IF NOT EXISTS irregulars_writer KEYED BY user_name
    FOR INTERVAL 1 minute MAX queries = 60000
    TO irregulars_writer;

GRANT SELECT ON irregulars.* TO irregulars_reader;

GRANT SELECT, INSERT ON irregulars.* TO irregulars_writer;

GRANT SELECT, INSERT, ALTER, CREATE TABLE, CREATE VIEW, DROP TABLE, DROP VIEW, TRUNCATE, OPTIMIZE
    ON irregulars.* TO irregulars_admin;

GRANT TABLE ENGINE ON ReplacingMergeTree TO irregulars_admin;

-- In a database of the engine Replicated.
GRANT TABLE ENGINE ON ReplicatedReplacingMergeTree TO irregulars_admin;
