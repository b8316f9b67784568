// The program that Watermill's documentation shows for an outbox: its SQL subscriber, its Forwarder,
// and a publisher for Google Cloud Pub/Sub with ordering on.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
)

// publisher hands each message to Google's client and waits for the reply. Watermill's own
// publisher, which the module proxy does not serve, does the same.
type publisher struct {
	client     *pubsub.Client
	threshold  int
	mutex      sync.Mutex
	publishers map[string]*pubsub.Publisher
}

func (p *publisher) of(topic string) *pubsub.Publisher {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	found, ok := p.publishers[topic]
	if !ok {
		found = p.client.Publisher(topic)
		found.EnableMessageOrdering = true
		if p.threshold > 0 {
			found.PublishSettings.CountThreshold = p.threshold
		}
		p.publishers[topic] = found
	}
	return found
}

func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	for _, it := range messages {
		key := it.Metadata.Get("ordering_key")
		to := p.of(topic)
		result := to.Publish(it.Context(), &pubsub.Message{Data: it.Payload, Attributes: it.Metadata, OrderingKey: key})
		if _, err := result.Get(it.Context()); err != nil {
			to.ResumePublish(key)
			return err
		}
	}
	return nil
}

func (p *publisher) Close() error { return p.client.Close() }

// setting returns a whole number from the environment, or 0.
func setting(name string) int {
	number, _ := strconv.Atoi(os.Getenv(name))
	return number
}

func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	logger := watermill.NewStdLogger(false, false)
	subscriber, err := sql.NewSubscriber(sql.BeginnerFromPgx(pool), sql.SubscriberConfig{
		ConsumerGroup:    os.Getenv("CONSUMER_GROUP"),
		PollInterval:     time.Duration(setting("POLL_MILLIS")) * time.Millisecond,
		SchemaAdapter:    sql.DefaultPostgreSQLSchema{SubscribeBatchSize: setting("BATCH")},
		OffsetsAdapter:   sql.DefaultPostgreSQLOffsetsAdapter{},
		InitializeSchema: true,
	}, logger)
	if err != nil {
		return err
	}
	client, err := pubsub.NewClient(ctx, os.Getenv("PROJECT"))
	if err != nil {
		return err
	}
	out := &publisher{client: client, threshold: setting("COUNT_THRESHOLD"), publishers: map[string]*pubsub.Publisher{}}
	daemon, err := forwarder.NewForwarder(subscriber, out, logger, forwarder.Config{ForwarderTopic: "outbox"})
	if err != nil {
		return err
	}
	return daemon.Run(ctx)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}
