// The official Go client as a producer or a consumer that is killed; its records are those of
// tests/server/killed_wire.py. Usage: killed produce|consume DIRECTORY NAMESRV TOPIC
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

var directory string

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
}

func unique() string {
	return fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64())
}

// Lines of one process in a file of its own: each is one write.
func records(kind string) *os.File {
	file, err := os.OpenFile(filepath.Join(directory, kind+"-go-"+unique()), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	check(err)
	return file
}

func add(file *os.File, key string) {
	_, err := file.WriteString(key + "\n")
	check(err)
}

func exists(name string) bool {
	_, err := os.Stat(filepath.Join(directory, name))
	return err == nil
}

// Decide a transaction, unless it was decided: the first file counts.
func decide(key, wanted string) primitive.LocalTransactionState {
	place, beside := filepath.Join(directory, "ledger", key), filepath.Join(directory, "draft-"+unique())
	check(os.WriteFile(beside, []byte(wanted), 0o600))
	if err := os.Link(beside, place); err != nil && !errors.Is(err, fs.ErrExist) {
		check(err)
	}
	check(os.Remove(beside))
	decided, err := os.ReadFile(place)
	check(err)
	if string(decided) == "c" {
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}

func keyOf(message *primitive.MessageExt) string {
	if keys := message.GetKeys(); keys != "" {
		return keys
	}
	return message.GetProperty("UNIQ_KEY")
}

type listener struct{ checked *os.File }

func (l *listener) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	chance, wanted := rand.Float64(), "c"
	if rand.Intn(3) == 2 {
		wanted = "r"
	}
	if chance < 0.1 { // as a producer that dies before it decides
		return primitive.UnknowState
	}
	decided := decide(message.GetKeys(), wanted)
	if chance < 0.3 { // and after it did
		return primitive.UnknowState
	}
	return decided
}

func (l *listener) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	decided := decide(keyOf(message), "r")
	add(l.checked, keyOf(message))
	return decided
}

func produce(servers []string, topic string) {
	options := []producer.Option{
		producer.WithNameServer(servers), producer.WithGroupName("shop"), producer.WithSendMsgTimeout(3 * time.Second),
		producer.WithInstanceName(unique()), producer.WithRetry(1),
	}
	acked, listening := records("acked"), &listener{records("checked")}
	sending, err := rocketmq.NewTransactionProducer(listening, options...)
	check(err)
	check(sending.Start())
	plain, err := rocketmq.NewProducer(append(options, producer.WithGroupName("plain"), producer.WithInstanceName(unique()))...)
	check(err)
	check(plain.Start())
	for ; !exists("stop"); time.Sleep(5 * time.Millisecond) {
		if exists("quiet") {
			time.Sleep(50 * time.Millisecond)
			continue
		}
		key := unique()
		message := primitive.NewMessage(topic, make([]byte, 200)).WithKeys([]string{key}).WithTag("go")
		if rand.Float64() >= 0.3 {
			_, err = sending.SendMessageInTransaction(context.Background(), message)
		} else {
			var result *primitive.SendResult
			if result, err = plain.SendSync(context.Background(), message); err == nil && result.Status == primitive.SendOK {
				add(acked, key)
			}
		}
		if err != nil { // a server is gone
			time.Sleep(100 * time.Millisecond)
		}
	}
}

func consume(servers []string, topic string) {
	delivered := records("delivered")
	receiving, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(servers), consumer.WithGroupName("billing"), consumer.WithInstance(unique()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	check(err)
	check(receiving.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"},
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				add(delivered, keyOf(message))
			}
			return consumer.ConsumeSuccess, nil
		}))
	check(receiving.Start())
	for !exists("stop") {
		time.Sleep(100 * time.Millisecond)
	}
}

func main() {
	rlog.SetLogLevel("fatal")
	directory = os.Args[2]
	servers := strings.Split(os.Args[3], ";")
	if os.Args[1] == "produce" {
		produce(servers, os.Args[4])
	} else {
		consume(servers, os.Args[4])
	}
	os.Exit(0)
}
