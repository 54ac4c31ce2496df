import com.alibaba.rocketmq.common.TopicFilterType;
import com.alibaba.rocketmq.common.message.MessageAccessor;
import com.alibaba.rocketmq.common.message.MessageDecoder;
import com.alibaba.rocketmq.store.MessageExtBrokerInner;
import com.alibaba.rocketmq.common.sysflag.MessageSysFlag;
import com.alibaba.rocketmq.store.DefaultMessageStore;
import com.alibaba.rocketmq.store.PutMessageResult;
import com.alibaba.rocketmq.store.PutMessageStatus;
import com.alibaba.rocketmq.store.config.FlushDiskType;
import com.alibaba.rocketmq.store.config.MessageStoreConfig;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.Arrays;

/**
 * RocketMQ's own store in this process, without a broker around it: the yardstick of tests/bench/write.py.
 *
 * write ROOT TRANSACTIONS BODY_BYTES ASYNC|SYNC THREADS WARM    prints seconds for the transactions after the first WARM
 * load ROOT                                                     prints the seconds that load() takes
 */
public class StoreYardstick {
    static final SocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);

    static MessageStoreConfig config(String root, boolean sync) {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root);
        config.setStorePathCommitLog(root + "/commitlog");
        config.setMapedFileSizeCommitLog(1 << 28);
        config.setMaxHashSlotNum(5000000);
        config.setMaxIndexNum(20000000);
        config.setCheckTransactionMessageEnable(false);
        config.setHaListenPort(0);
        config.setDiskMaxUsedSpaceRatio(95);
        config.setFlushDiskType(sync ? FlushDiskType.SYNC_FLUSH : FlushDiskType.ASYNC_FLUSH);
        return config;
    }

    static PutMessageResult put(DefaultMessageStore store, MessageExtBrokerInner message) {
        PutMessageResult result = store.putMessage(message);
        if (result.getPutMessageStatus() != PutMessageStatus.PUT_OK) throw new RuntimeException("" + result);
        return result;
    }

    static void transaction(DefaultMessageStore store, byte[] body, int number, boolean sync) {
        MessageExtBrokerInner half = new MessageExtBrokerInner();
        half.setTopic("OrderTopic");
        half.setBody(body);
        half.setQueueId(number & 3);
        half.setSysFlag(MessageSysFlag.TransactionPreparedType);
        half.setBornTimestamp(System.currentTimeMillis());
        half.setBornHost(HOST);
        half.setStoreHost(HOST);
        half.putUserProperty("orderId", "o" + number);
        MessageAccessor.putProperty(half, "KEYS", "key-" + number);
        MessageAccessor.putProperty(half, "TAGS", "TagA");
        MessageAccessor.putProperty(half, "TRAN_MSG", "true");
        MessageAccessor.putProperty(half, "PGROUP", "order_producer");
        half.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(TopicFilterType.SINGLE_TAG, "TagA"));
        half.setPropertiesString(MessageDecoder.messageProperties2String(half.getProperties()));
        half.setWaitStoreMsgOK(sync);
        PutMessageResult placed = put(store, half);
        boolean commits = number % 10 != 0;
        MessageExtBrokerInner end = new MessageExtBrokerInner();
        end.setTopic("OrderTopic");
        end.setBody(commits ? body : null);
        end.setQueueId(number & 3);
        end.setSysFlag(commits ? MessageSysFlag.TransactionCommitType : MessageSysFlag.TransactionRollbackType);
        end.setBornTimestamp(half.getBornTimestamp());
        end.setBornHost(HOST);
        end.setStoreHost(HOST);
        MessageAccessor.setProperties(end, half.getProperties());
        end.setPropertiesString(half.getPropertiesString());
        end.setTagsCode(half.getTagsCode());
        end.setQueueOffset(placed.getAppendMessageResult().getLogicsOffset());
        end.setPreparedTransactionOffset(placed.getAppendMessageResult().getWroteOffset());
        end.setStoreTimestamp(half.getStoreTimestamp());
        end.setWaitStoreMsgOK(sync);
        put(store, end);
    }

    static void run(DefaultMessageStore store, byte[] body, int first, int count, int threads, boolean sync)
            throws Exception {
        Thread[] workers = new Thread[threads];
        int each = count / threads;
        for (int w = 0; w < threads; w++) {
            int from = first + w * each;
            workers[w] = new Thread(() -> {
                for (int i = 0; i < each; i++) transaction(store, body, from + i, sync);
            });
            workers[w].start();
        }
        for (Thread worker : workers) worker.join();
    }

    public static void main(String[] words) throws Exception {
        String root = words[1];
        if (words[0].equals("load")) {
            long start = System.nanoTime();
            boolean loaded = new DefaultMessageStore(config(root, false), (g, t, c, m) -> { }).load();
            System.out.printf("yardstick %s %.4f%n", loaded, (System.nanoTime() - start) / 1e9);
            Runtime.getRuntime().halt(0);
        }
        int count = Integer.parseInt(words[2]);
        byte[] body = new byte[Integer.parseInt(words[3])];
        boolean sync = words[4].equals("SYNC");
        int threads = Integer.parseInt(words[5]);
        int warm = Integer.parseInt(words[6]);
        Arrays.fill(body, (byte) 'x');
        DefaultMessageStore store = new DefaultMessageStore(config(root, sync), (g, t, c, m) -> { });
        if (!store.load()) throw new RuntimeException("load failed");
        store.start();
        run(store, body, 0, warm, threads, sync);
        long start = System.nanoTime();
        run(store, body, warm, count, threads, sync);
        System.out.printf("yardstick true %.4f%n", (System.nanoTime() - start) / 1e9);
        Thread.sleep(2000); // the dispatcher's thread is behind
        Runtime.getRuntime().halt(0); // as a crash: `abort` stays
    }
}
