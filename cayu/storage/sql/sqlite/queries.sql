-- name: head_state
SELECT key, version, status, epoch, owner, lease_expires_at, model_steps, tool_calls, input_tokens, output_tokens,
       pending, created_at, updated_at
FROM streams WHERE id = ?;

-- name: insert_head
INSERT INTO streams (
    id, instance_id, agent_name, provider_name, model, environment_name, parent_session_id, causal_budget_id, title,
    labels, metadata, version, status, epoch, owner, lease_expires_at, model_steps, tool_calls, input_tokens,
    output_tokens, pending, created_at, updated_at
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: update_head
UPDATE streams SET version = ?, status = ?, epoch = ?, owner = ?, lease_expires_at = ?, model_steps = ?,
    tool_calls = ?, input_tokens = ?, output_tokens = ?, pending = ?, created_at = ?, updated_at = ?
WHERE key = ?;

-- name: insert_event
INSERT INTO events (stream, sequence, type, at, body) VALUES (?, ?, ?, ?, ?);

-- name: upsert_item
INSERT INTO items (stream, kind, key, state, due_at, body) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (stream, kind, key) DO UPDATE SET state = excluded.state, due_at = excluded.due_at, body = excluded.body;

-- name: head
SELECT key, id, instance_id, agent_name, provider_name, model, environment_name, parent_session_id, causal_budget_id,
       title, labels, metadata, version, status, epoch, owner, lease_expires_at, model_steps, tool_calls, input_tokens,
       output_tokens, pending, created_at, updated_at
FROM streams WHERE id = ?;

-- name: events_after
SELECT sequence, type, at, body FROM events WHERE stream = ? AND sequence > ? ORDER BY sequence;

-- name: heads
SELECT key, id, instance_id, agent_name, provider_name, model, environment_name, parent_session_id, causal_budget_id,
       title, labels, metadata, version, status, epoch, owner, lease_expires_at, model_steps, tool_calls, input_tokens,
       output_tokens, pending, created_at, updated_at
FROM streams
WHERE (:after IS NULL OR key < :after)
  AND (:id IS NULL OR id = :id)
  AND (:agent_name IS NULL OR agent_name = :agent_name)
  AND (:status IS NULL OR status = :status)
  AND (:text IS NULL OR instr(casefold(id || ' ' || agent_name || ' ' || coalesce(title, '')), :text) > 0)
ORDER BY key DESC
LIMIT :limit;

-- name: count_heads
SELECT count(*) FROM streams
WHERE (:id IS NULL OR id = :id)
  AND (:agent_name IS NULL OR agent_name = :agent_name)
  AND (:status IS NULL OR status = :status)
  AND (:text IS NULL OR instr(casefold(id || ' ' || agent_name || ' ' || coalesce(title, '')), :text) > 0);

-- name: child_heads
SELECT key, id, instance_id, agent_name, provider_name, model, environment_name, parent_session_id, causal_budget_id,
       title, labels, metadata, version, status, epoch, owner, lease_expires_at, model_steps, tool_calls, input_tokens,
       output_tokens, pending, created_at, updated_at
FROM streams
WHERE parent_session_id = :parent AND (:after IS NULL OR key < :after)
ORDER BY key DESC
LIMIT :limit;

-- name: count_child_heads
SELECT count(*) FROM streams WHERE parent_session_id = :parent;

-- name: scan_events
SELECT s.id, e.sequence, e.type, e.at, CASE WHEN :bodies THEN e.body ELSE x'7b7d' END
FROM events AS e JOIN streams AS s ON s.key = e.stream
WHERE (:id IS NULL OR e.stream = (SELECT key FROM streams WHERE id = :id))
  AND (:types IS NULL OR e.type IN (SELECT value FROM json_each(:types)))
ORDER BY e.stream, e.sequence
LIMIT :limit;

-- name: items
SELECT i.stream, s.id, i.kind, i.key, i.state, i.due_at, i.body
FROM items AS i JOIN streams AS s ON s.key = i.stream
WHERE (i.stream, i.kind, i.key) > (:stream, :kind, :key)
  AND (:id IS NULL OR s.id = :id)
  AND (:kinds IS NULL OR i.kind IN (SELECT value FROM json_each(:kinds)))
  AND (:state IS NULL OR i.state = :state)
ORDER BY i.stream, i.kind, i.key
LIMIT :limit;

-- name: pending_items
SELECT i.stream, s.id, i.kind, i.key, i.state, i.due_at, i.body
FROM items AS i JOIN streams AS s ON s.key = i.stream
WHERE i.state = 'pending'
  AND (i.stream, i.kind, i.key) > (:stream, :kind, :key)
  AND (:id IS NULL OR s.id = :id)
  AND (:kinds IS NULL OR i.kind IN (SELECT value FROM json_each(:kinds)))
ORDER BY i.stream, i.kind, i.key
LIMIT :limit;

-- name: count_items
SELECT count(*)
FROM items AS i JOIN streams AS s ON s.key = i.stream
WHERE (:id IS NULL OR s.id = :id)
  AND (:kinds IS NULL OR i.kind IN (SELECT value FROM json_each(:kinds)))
  AND (:state IS NULL OR i.state = :state);

-- name: count_pending_items
SELECT count(*)
FROM items AS i JOIN streams AS s ON s.key = i.stream
WHERE i.state = 'pending'
  AND (:id IS NULL OR s.id = :id)
  AND (:kinds IS NULL OR i.kind IN (SELECT value FROM json_each(:kinds)));

-- name: document
SELECT body FROM documents WHERE collection = ? AND id = ?;

-- name: put_document
INSERT INTO documents (collection, id, body) VALUES (?, ?, ?)
ON CONFLICT (collection, id) DO UPDATE SET body = excluded.body;

-- name: knowledge_frontier
SELECT coalesce(max(change), 0) FROM knowledge;

-- name: knowledge_current
SELECT key, revision, deleted, body FROM knowledge WHERE id = ? ORDER BY revision DESC LIMIT 1;

-- name: knowledge_supersede
UPDATE knowledge SET superseded_by = ? WHERE key = ?;

-- name: knowledge_insert
INSERT INTO knowledge (
    id, revision, change, deleted, namespace, labels, kind, visibility, status, source_type, source_id, expires_at, body
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: knowledge_index
INSERT INTO knowledge_tokens (rowid, tokens) VALUES (?, ?);

-- name: knowledge_select
SELECT body FROM knowledge AS k
WHERE k.deleted = 0
  AND (:tokens IS NULL OR k.key IN (SELECT rowid FROM knowledge_tokens WHERE knowledge_tokens MATCH :tokens))
  AND (:frontier IS NULL OR k.change <= :frontier)
  AND (k.superseded_by IS NULL OR (:frontier IS NOT NULL AND k.superseded_by > :frontier))
  AND (:entry_id IS NULL OR k.id = :entry_id)
  AND (:namespace IS NULL OR k.namespace = :namespace)
  AND (:kinds IS NULL OR k.kind IN (SELECT value FROM json_each(:kinds)))
  AND (:all_namespaces OR k.namespace IN (SELECT value FROM json_each(:namespaces)))
  AND k.visibility IN (SELECT value FROM json_each(:visibilities))
  AND k.status IN (SELECT value FROM json_each(:statuses))
  AND (:source_types IS NULL OR k.source_type IN (SELECT value FROM json_each(:source_types)))
  AND (:source_ids IS NULL OR k.source_id IN (SELECT value FROM json_each(:source_ids)))
  AND (:expired OR k.expires_at IS NULL OR k.expires_at > :now)
  AND NOT EXISTS (
      SELECT 1 FROM json_each(:labels) AS need
      WHERE NOT EXISTS (
          SELECT 1 FROM json_each(k.labels) AS have
          WHERE have.value ->> 0 = need.value ->> 0 AND have.value ->> 1 = need.value ->> 1
      )
  )
ORDER BY k.id;

-- name: count_tables
SELECT count(*) FROM sqlite_master;
