CREATE TABLE streams (
    key INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    instance_id TEXT NOT NULL,
    agent_name TEXT NOT NULL,
    provider_name TEXT NOT NULL,
    model TEXT NOT NULL,
    environment_name TEXT,
    parent_session_id TEXT,
    causal_budget_id TEXT,
    title TEXT,
    labels BLOB NOT NULL,
    metadata BLOB NOT NULL,
    version INTEGER NOT NULL,
    status TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    owner TEXT,
    lease_expires_at INTEGER,
    model_steps INTEGER NOT NULL,
    tool_calls INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    pending INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
);

CREATE TABLE events (
    stream INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    type TEXT NOT NULL,
    at INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (stream, sequence)
) WITHOUT ROWID;

CREATE TABLE items (
    stream INTEGER NOT NULL,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    state TEXT NOT NULL,
    due_at INTEGER,
    body BLOB NOT NULL,
    PRIMARY KEY (stream, kind, key)
) WITHOUT ROWID;

CREATE INDEX items_pending ON items (stream, kind, key) WHERE state = 'pending';

CREATE TABLE documents (
    collection TEXT NOT NULL,
    id TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (collection, id)
) WITHOUT ROWID;

CREATE TABLE knowledge (
    key INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    revision INTEGER NOT NULL,
    change INTEGER NOT NULL UNIQUE,
    superseded_by INTEGER,
    deleted INTEGER NOT NULL,
    namespace TEXT NOT NULL,
    labels TEXT NOT NULL,
    kind TEXT NOT NULL,
    visibility TEXT NOT NULL,
    status TEXT NOT NULL,
    source_type TEXT NOT NULL,
    source_id TEXT NOT NULL,
    expires_at INTEGER,
    body BLOB NOT NULL,
    UNIQUE (id, revision)
);

CREATE VIRTUAL TABLE knowledge_tokens USING fts5 (tokens, content = '', detail = 'none', tokenize = 'ascii');
