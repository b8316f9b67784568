//! What an operator has begun with a slot and not finished, in `app_outbox_relay.operation`.
//!
//! It stands in the database before it acts, so that whoever comes next finishes it or waits: a slot
//! that is gone in the middle of a reset is not lost. Beginning raises the generation, and every write
//! of a session is conditional on that: a relay that was streaming lets go.

use std::time::SystemTime;
use walrelay_pg_client::{SqlError, lock_is_taken};

use pgoutput_parser::Lsn;
use tokio_postgres::Client;
use tokio_postgres::types::{PgLsn, ToSql, Type};

use crate::admin_error::{AdminError, shards};
use walrelay_outbox_store::{SLOT_WITH_OLDEST, anchor_of};
use walrelay_pg_replication::{Failover, read_slot};

/// The slot is replaced by a copy of an anchor, and streams from a position of its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reset {
    /// The slot of the anchor.
    pub anchor_slot: String,
    /// Where the stream starts again.
    pub target: Lsn,
    /// What the slot was before, which a copy forgets.
    pub failover: Failover,
    /// Which rows of dispatch state behind the target are published again too.
    pub again: Again,
}

/// The slot was lost. A new one is made, and what the old one may not have settled is published first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// Marks the rows that are published from the table.
    pub id: String,
    /// What the lost slot was.
    pub failover: Failover,
    /// What is known to be settled.
    pub bound: Bound,
    /// Once the new slot is there, and what it does not stream is fixed.
    pub filling: Option<Filling>,
}

/// What is known to be settled of what a new slot does not stream; the rest is published from the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Nothing: there was no slot before.
    Nothing,
    /// Every transaction below the horizon on record.
    Horizon,
    /// Rows of events before this moment, where transaction ids say nothing.
    Since(SystemTime),
}

/// An upgrade of the server: once the slot is dropped for it, nothing is to be made before the upgrade.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upgrade {
    /// The server that is to be upgraded.
    pub system_identifier: String,
    /// Its version, as `server_version_num` has it.
    pub version: i32,
    /// How far it is prepared.
    pub stage: UpgradeStage,
}

impl Upgrade {
    /// Whether a server is no longer the one that was to be upgraded.
    #[must_use]
    pub fn has_happened(&self, system_identifier: &str, version: i32) -> bool {
        system_identifier != self.system_identifier || version != self.version
    }
}

/// How far an upgrade is prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpgradeStage {
    /// The slot is still there: relays can go on with it.
    Preparing,
    /// The slot is dropped.
    Prepared,
}

/// The new slot, and what it does not stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filling {
    /// Where it begins.
    pub consistent_point: Lsn,
    /// What was committed before (`pg_snapshot`).
    pub snapshot: String,
}

/// What an operator has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotOperation {
    /// The slot is replaced by a copy of an anchor.
    Reset(Reset),
    /// A lost slot is replaced by a new one.
    Recovery(Recovery),
    /// The server is about to be upgraded.
    Upgrade(Upgrade),
    /// The number of shards is being changed, and this slot is one of the old or the new ones.
    Resharding(Resharding),
}

/// The number of shards is being changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resharding {
    /// How many there were.
    pub from: u32,
    /// How many there will be.
    pub to: u32,
}

impl SlotOperation {
    /// What it is, for whoever has to wait for it.
    #[must_use]
    pub fn describe(&self, slot: &str) -> String {
        match self {
            Self::Reset(reset) => reset.describe(slot),
            Self::Recovery(Recovery { filling, bound, .. }) => {
                let what = match bound {
                    Bound::Nothing => "a backfill",
                    Bound::Horizon | Bound::Since(_) => "a recovery",
                };
                match filling {
                    None => what.to_owned(),
                    Some(filling) => format!(
                        "{what} (the new slot begins at {}; rows before it are still to be published)",
                        filling.consistent_point
                    ),
                }
            }
            Self::Upgrade(Upgrade { stage: UpgradeStage::Preparing, .. }) => {
                "an upgrade that is being prepared (the slot is still there)".to_owned()
            }
            Self::Upgrade(Upgrade { stage: UpgradeStage::Prepared, .. }) => {
                "an upgrade (the slot is dropped for it; after it, or without it, `walrelay slot recover` goes on)"
                    .to_owned()
            }
            Self::Resharding(Resharding { from, to }) => format!(
                "a change from {} to {} (`walrelay reshard --shards {to}` finishes it)",
                shards(*from),
                shards(*to)
            ),
        }
    }

    /// The command that finishes it, when it is run.
    #[must_use]
    pub fn finished_by(&self) -> String {
        match self {
            Self::Reset(_) | Self::Recovery(_) => "walrelay run".to_owned(),
            Self::Upgrade(upgrade) => match upgrade.stage {
                UpgradeStage::Preparing => "walrelay prepare-upgrade".to_owned(),
                UpgradeStage::Prepared => "walrelay slot recover".to_owned(),
            },
            Self::Resharding(Resharding { to, .. }) => format!("walrelay reshard --shards {to}"),
        }
    }
}

/// Rows of dispatch state that count as new after a reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// Those that were published from there.
    Published,
    /// Those, and those that are dead.
    PublishedAndDead,
}

impl Again {
    const fn statuses(self) -> &'static [&'static str] {
        match self {
            Self::Published => &["published"],
            Self::PublishedAndDead => &["published", "dead"],
        }
    }
}

impl Reset {
    /// What it is, for whoever has to wait for it.
    #[must_use]
    pub fn describe(&self, slot: &str) -> String {
        let anchor = anchor_of(slot, &self.anchor_slot);
        format!("a reset to {} behind anchor {anchor:?}", self.target)
    }

    /// Whether the anchor is still there, with its log: without it the reset is given up.
    ///
    /// # Errors
    ///
    /// The server refused, or the connection ended.
    pub async fn has_anchor(&self, client: &Client) -> Result<bool, AdminError> {
        let anchor = read_slot(client, &self.anchor_slot).await?;
        Ok(anchor.is_some_and(|anchor| !anchor.is_lost()))
    }
}

/// What has been begun with the slot, if something has.
///
/// # Errors
///
/// It is nothing that this version knows; the server refused, or the connection ended.
pub async fn read_operation(
    client: &Client,
    slot: &str,
) -> Result<Option<SlotOperation>, AdminError> {
    let row = client
        .query_typed_opt(
            "SELECT operation ->> 'kind' AS kind, operation ->> 'anchor_slot' AS anchor_slot,
                    (operation ->> 'target')::pg_lsn AS target,
                    coalesce((operation ->> 'failover')::bool, false) AS failover,
                    coalesce((operation ->> 'include_dead')::bool, false) AS include_dead,
                    operation ->> 'bound' AS bound, (operation ->> 'since')::timestamptz AS since,
                    operation ->> 'system_identifier' AS system_identifier,
                    (operation ->> 'version')::int AS version, operation ->> 'id' AS id, operation ->> 'snapshot' AS snapshot,
                    (operation ->> 'consistent_point')::pg_lsn AS consistent_point,
                    (operation ->> 'from')::int AS before, (operation ->> 'to')::int AS after,
                    EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = $1) AS has_slot
               FROM (SELECT to_jsonb(r) -> 'operation' AS operation
                       FROM public.app_outbox_relay r WHERE slot = $1) AS row
              WHERE jsonb_typeof(operation) = 'object'",
            &[(&slot, Type::TEXT)],
        )
        .await
        .map_err(AdminError::sql("read app_outbox_relay.operation"))?;
    let Some(row) = row else { return Ok(None) };
    let lsn = |column| row.get::<_, Option<PgLsn>>(column).map(|lsn| Lsn::new(lsn.into()));
    let failover = if row.get("failover") { Failover::Yes } else { Failover::No };
    let text = |column| row.get::<_, Option<String>>(column);
    let read = match text("kind").as_deref() {
        Some("reset") => text("anchor_slot").zip(lsn("target")).map(|(anchor_slot, target)| {
            let again = match row.get("include_dead") {
                true => Again::PublishedAndDead,
                false => Again::Published,
            };
            SlotOperation::Reset(Reset { anchor_slot, target, failover, again })
        }),
        Some("recovery") => text("id").map(|id| {
            let filling = lsn("consistent_point")
                .zip(text("snapshot"))
                .map(|(consistent_point, snapshot)| Filling { consistent_point, snapshot });
            let bound = match (text("bound").as_deref(), row.get("since")) {
                (_, Some(since)) => Bound::Since(since),
                (Some("nothing"), None) => Bound::Nothing,
                (Some(_) | None, None) => Bound::Horizon,
            };
            SlotOperation::Recovery(Recovery { id, failover, bound, filling })
        }),
        Some("upgrade") => {
            let stage = match row.get("has_slot") {
                true => UpgradeStage::Preparing,
                false => UpgradeStage::Prepared,
            };
            text("system_identifier").zip(row.get("version")).map(|(system_identifier, version)| {
                SlotOperation::Upgrade(Upgrade { system_identifier, version, stage })
            })
        }
        Some("resharding") => {
            let count = |column| u32::try_from(row.get::<_, Option<i32>>(column)?).ok();
            count("before")
                .zip(count("after"))
                .map(|(from, to)| SlotOperation::Resharding(Resharding { from, to }))
        }
        Some(_) | None => None,
    };
    let unexpected = || {
        AdminError::Sql(SqlError::UnexpectedValue {
            column: "app_outbox_relay.operation",
            value: text("kind").unwrap_or_default(),
            expected: "an operation that this version knows",
        })
    };
    read.map(Some).ok_or_else(unexpected)
}

/// Puts a reset on record. False when something has been begun already: then nothing was written.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn begin_reset(client: &Client, slot: &str, reset: &Reset) -> Result<bool, AdminError> {
    begin(
        client,
        "'kind', 'reset', 'anchor_slot', $2, 'target', $3::text, 'failover', $4, 'include_dead', $5",
        &[
            (&slot, Type::TEXT),
            (&reset.anchor_slot, Type::TEXT),
            (&reset.target.to_string(), Type::TEXT),
            (&(reset.failover == Failover::Yes), Type::BOOL),
            (&(reset.again == Again::PublishedAndDead), Type::BOOL),
        ],
    )
    .await
}

/// Puts an operation on the slot `$1` on record, made of these names and values.
async fn begin(
    client: &Client,
    fields: &str,
    parameters: &[(&(dyn ToSql + Sync), Type)],
) -> Result<bool, AdminError> {
    let sql = format!(
        "UPDATE public.app_outbox_relay
            SET operation = jsonb_build_object({fields}, 'begun_at', now()),
                generation = generation + 1, updated_at = now()
          WHERE slot = $1 AND operation IS NULL"
    );
    let written = client.execute_typed(&sql, parameters).await;
    Ok(written.map_err(AdminError::sql("write app_outbox_relay.operation"))? == 1)
}

/// The slot is a copy of the anchor: what it is settled up to becomes the target, and rows that were
/// published from dispatch state behind it no longer count as recorded. All or nothing.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn finish_reset(client: &Client, slot: &str, reset: &Reset) -> Result<(), AdminError> {
    let statuses: Vec<&str> = reset.again.statuses().to_vec();
    client
        .execute_typed(
            &format!(
            "WITH gone AS (
               DELETE FROM public.app_outbox_dispatch
                WHERE slot = $1 AND commit_lsn >= $2 AND status = ANY ($3)
             )
             UPDATE public.app_outbox_relay r
                SET operation = NULL, settled_lsn = $2, settled_xid = copy.oldest, updated_at = now()
               FROM ({SLOT_WITH_OLDEST}) AS copy
              WHERE r.slot = $1 AND r.operation IS NOT NULL"
            ),
            &[
                (&slot, Type::TEXT),
                (&PgLsn::from(reset.target.as_u64()), Type::PG_LSN),
                (&statuses, Type::TEXT_ARRAY),
            ],
        )
        .await
        .map_err(AdminError::sql("finish the reset in app_outbox_relay"))?;
    Ok(())
}

/// Puts a recovery on record. False when something has been begun already: then nothing was written. An
/// upgrade ends with it, and the slot that was dropped for it is known to have been a failover slot or not. On another server than the one on record, positions are forgotten: they mean
/// nothing there.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn begin_recovery(
    client: &Client,
    slot: &str,
    recovery: &Recovery,
    (system_identifier, timeline): (&str, u32),
) -> Result<bool, AdminError> {
    let (bound, since) = recovery.bound.columns();
    let written = client
        .execute_typed(
            "UPDATE public.app_outbox_relay
                SET operation = jsonb_build_object('kind', 'recovery', 'id', $2,
                                                   'failover', $3 OR coalesce((operation ->> 'failover')::bool, false),
                                                   'bound', $6, 'since', $7, 'begun_at', now()),
                    settled_lsn = CASE WHEN system_identifier = $4 THEN settled_lsn ELSE '0/0' END,
                    system_identifier = $4, timeline = $5,
                    generation = generation + 1, updated_at = now()
              WHERE slot = $1 AND (operation IS NULL OR operation ->> 'kind' = 'upgrade')",
            &[
                (&slot, Type::TEXT),
                (&recovery.id, Type::TEXT),
                (&(recovery.failover == Failover::Yes), Type::BOOL),
                (&system_identifier, Type::TEXT),
                (&timeline_column(timeline)?, Type::INT4),
                (&bound, Type::TEXT),
                (&since, Type::TIMESTAMPTZ),
            ],
        )
        .await
        .map_err(AdminError::sql("write app_outbox_relay.operation"))?;
    Ok(written == 1)
}

/// Puts a backfill on record, of a slot that never was. False when something is on record about it.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn begin_backfill(
    client: &Client,
    slot: &str,
    recovery: &Recovery,
    (system_identifier, timeline): (&str, u32),
) -> Result<bool, AdminError> {
    let (bound, since) = recovery.bound.columns();
    let written = client
        .execute_typed(
            // 3 is the first transaction id there is. A session that found no row makes one of generation 1:
            // this is not that one.
            "INSERT INTO public.app_outbox_relay
                    (slot, system_identifier, timeline, generation, settled_lsn, settled_xid, operation)
             VALUES ($1, $4, $5, 2, '0/0', '3',
                     jsonb_build_object('kind', 'recovery', 'id', $2, 'failover', $3,
                                        'bound', $6, 'since', $7, 'begun_at', now()))
             ON CONFLICT (slot) DO NOTHING",
            &[
                (&slot, Type::TEXT),
                (&recovery.id, Type::TEXT),
                (&(recovery.failover == Failover::Yes), Type::BOOL),
                (&system_identifier, Type::TEXT),
                (&timeline_column(timeline)?, Type::INT4),
                (&bound, Type::TEXT),
                (&since, Type::TIMESTAMPTZ),
            ],
        )
        .await
        .map_err(AdminError::sql("write app_outbox_relay.operation"))?;
    Ok(written == 1)
}

impl Bound {
    fn columns(self) -> (&'static str, Option<SystemTime>) {
        match self {
            Self::Nothing => ("nothing", None),
            Self::Horizon => ("horizon", None),
            Self::Since(at) => ("since", Some(at)),
        }
    }
}

pub(crate) fn timeline_column(timeline: u32) -> Result<i32, AdminError> {
    let value = u64::from(timeline);
    i32::try_from(timeline)
        .map_err(|_| AdminError::Sql(SqlError::OutOfRange { what: "timeline", value }))
}

/// Puts an upgrade on record: relays let go of the slot and wait until it has happened. False when
/// something else has been begun.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn begin_upgrade(
    client: &Client,
    slot: &str,
    upgrade: &Upgrade,
) -> Result<bool, AdminError> {
    let written = client
        .execute_typed(
            "UPDATE public.app_outbox_relay
                SET operation = jsonb_build_object('kind', 'upgrade', 'system_identifier', $2, 'version', $3,
                                                   'failover', (SELECT to_jsonb(s) -> 'failover'
                                                                  FROM pg_catalog.pg_replication_slots s
                                                                 WHERE slot_name = $1),
                                                   'begun_at', now()),
                    generation = generation + 1, updated_at = now()
              WHERE slot = $1 AND (operation IS NULL OR operation ->> 'kind' = 'upgrade')",
            &[
                (&slot, Type::TEXT),
                (&upgrade.system_identifier, Type::TEXT),
                (&upgrade.version, Type::INT4),
            ],
        )
        .await
        .map_err(AdminError::sql("write app_outbox_relay.operation"))?;
    Ok(written == 1)
}

/// Notes that the new slot is there, and what it does not stream.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn note_filling(
    client: &Client,
    slot: &str,
    filling: &Filling,
) -> Result<(), AdminError> {
    client
        .execute_typed(
            "UPDATE public.app_outbox_relay
                SET operation = operation || jsonb_build_object('consistent_point', $2::text, 'snapshot', $3),
                    updated_at = now()
              WHERE slot = $1 AND operation ->> 'kind' = 'recovery'",
            &[
                (&slot, Type::TEXT),
                (&filling.consistent_point.to_string(), Type::TEXT),
                (&filling.snapshot, Type::TEXT),
            ],
        )
        .await
        .map_err(AdminError::sql("write app_outbox_relay.operation"))?;
    Ok(())
}

/// What the new slot does not stream is settled: the record is the new slot's from here on.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn finish_recovery(client: &Client, slot: &str) -> Result<(), AdminError> {
    client
        .execute_typed(
            "UPDATE public.app_outbox_relay
                SET settled_lsn = (operation ->> 'consistent_point')::pg_lsn,
                    settled_xid = pg_snapshot_xmin((operation ->> 'snapshot')::pg_snapshot),
                    operation = NULL, updated_at = now()
              WHERE slot = $1 AND operation ->> 'kind' = 'recovery' AND operation ? 'snapshot'",
            &[(&slot, Type::TEXT)],
        )
        .await
        .map_err(AdminError::sql("finish the recovery in app_outbox_relay"))?;
    Ok(())
}

/// Gives up what was begun: what it needs is gone. What the slot had settled stays on record.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn give_up_operation(client: &Client, slot: &str) -> Result<(), AdminError> {
    client
        .execute_typed(
            "UPDATE public.app_outbox_relay SET operation = NULL, updated_at = now() WHERE slot = $1",
            &[(&slot, Type::TEXT)],
        )
        .await
        .map_err(AdminError::sql("write app_outbox_relay.operation"))?;
    Ok(())
}

/// Whether this session is now the one that works on the slot's operation; until it lets go or ends.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn take_operation(client: &Client, slot: &str) -> Result<bool, AdminError> {
    lock(client, slot, "SELECT pg_try_advisory_lock(hashtextextended($1, 0))").await
}

/// Whether some session works on it: `take_operation`.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn is_operation_taken(client: &Client, slot: &str) -> Result<bool, AdminError> {
    lock(client, slot, &format!("SELECT {}", lock_is_taken("$1"))).await
}

/// Lets another session work on it.
///
/// # Errors
///
/// The server refused, or the connection ended.
pub async fn release_operation(client: &Client, slot: &str) -> Result<(), AdminError> {
    lock(client, slot, "SELECT pg_advisory_unlock(hashtextextended($1, 0))").await.map(drop)
}

async fn lock(client: &Client, slot: &str, sql: &str) -> Result<bool, AdminError> {
    let name = format!("walrelay operation {slot}");
    let row = client
        .query_typed_one(sql, &[(&name, Type::TEXT)])
        .await
        .map_err(AdminError::sql("take the operation on the slot"))?;
    Ok(row.get(0))
}

/// Decodes the first change behind the anchor: whether the log and the publication are there for it.
/// It has to be free, and does not move.
///
/// # Errors
///
/// It cannot be decoded through this publication; the server refused, or the connection ended.
pub async fn try_decoding(
    client: &Client,
    slot: &str,
    quoted_publication: &str,
) -> Result<(), AdminError> {
    client
        .query_typed(
            "SELECT count(*) FROM pg_logical_slot_peek_binary_changes($1, NULL, 1,
                      'proto_version', '1', 'publication_names', $2)",
            &[(&slot, Type::TEXT), (&quoted_publication, Type::TEXT)],
        )
        .await
        .map_err(AdminError::sql(format!("decode the log behind slot {slot:?}")))?;
    Ok(())
}
