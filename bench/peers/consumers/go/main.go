// A subscriber on Google's Go client that applies each message in a transaction of its own. With
// DEDUPLICATE set, the transaction also inserts the event's id into a table, and an event whose id is
// there has no further effect.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"cloud.google.com/go/pubsub/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	seen = "INSERT INTO bench_seen VALUES ($1) ON CONFLICT DO NOTHING"
	// The newest state of each key, and the number of applied events.
	effect = `INSERT INTO bench_state AS s VALUES ($1, $2, 1, $3)
		ON CONFLICT (id) DO UPDATE
		SET version = excluded.version, events = s.events + 1, text = excluded.text`
)

type applier struct {
	pool         *pgxpool.Pool
	deduplicates bool
}

func (a *applier) apply(ctx context.Context, message *pubsub.Message) error {
	version, err := strconv.ParseInt(message.Attributes["version"], 10, 64)
	if err != nil {
		return err
	}
	var payload struct{ Text string }
	if err := json.Unmarshal(message.Data, &payload); err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, a.pool, func(transaction pgx.Tx) error {
		if a.deduplicates {
			inserted, err := transaction.Exec(ctx, seen, message.Attributes["event_id"])
			if err != nil || inserted.RowsAffected() == 0 {
				return err
			}
		}
		_, err := transaction.Exec(ctx, effect, message.Attributes["aggregate_id"], version, payload.Text)
		return err
	})
}

func run(ctx context.Context) error {
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	// As many connections as each of the compared consumers has.
	config.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := pubsub.NewClient(ctx, "bench")
	if err != nil {
		return err
	}
	defer client.Close()
	it := &applier{pool: pool, deduplicates: os.Getenv("DEDUPLICATE") != ""}
	return client.Subscriber(os.Getenv("SUBSCRIPTION")).Receive(ctx, func(ctx context.Context, message *pubsub.Message) {
		if err := it.apply(ctx, message); err != nil {
			log.Println(err)
			message.Nack()
			return
		}
		message.Ack()
	})
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}
