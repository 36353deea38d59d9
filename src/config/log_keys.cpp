#include "config/log_keys.hpp"

#include "hat/config/checks.hpp"

namespace hat {

void add_log_keys(OptionSet& options, LogConfig& log) {
  options.add_named<LogPayload>(
      "log.payload", log.payload,
      {{"none", LogPayload::none},
       {"metadata", LogPayload::metadata},
       {"sum", LogPayload::sum},
       {"push", LogPayload::push}},
      "The gradient log, from which a run that was killed continues at its last committed step: the sums that the "
      "optimizer consumed (parameters x 4 bytes a step), also the bytes of every push, only what happened (metadata: "
      "hat "
      "replay computes the gradients again, but a run continues at its newest checkpoint), or no log");
  options.add_named<LogDurability>(
      "log.durability", log.durability, {{"commit", LogDurability::commit}, {"interval", LogDurability::interval}},
      "Preset: interval with unbounded staleness, else commit. When a version may be published: once what produced it "
      "is on disk (fsync), or at once, with an fsync every "
      "log.interval_s seconds: then a killed job loses what waits to be written (at most 256 MiB or two steps), a "
      "crash of the machine what was published in the last 2 x log.interval_s; publishing waits for a slower disk");
  options.add("log.interval_s", log.interval_s, "Seconds between fsyncs with log.durability = interval")
      ->check(real_in(0.001, 3600));
  options.add_named<LogKeep>(
      "log.keep", log.keep, {{"recovery", LogKeep::recovery}, {"all", LogKeep::all}},
      "Whether log files are removed that complete checkpoints have made unnecessary, or all are kept for a replay");
  options.add_named<LogCompression>(
      "log.compression", log.compression,
      {{"auto", LogCompression::automatic}, {"none", LogCompression::none}, {"deflate", LogCompression::deflate}},
      "Lossless compression of the sums in the log (shuffled bytes, deflate; every HDF5 program reads it): auto "
      "compresses a file, from the second one on, where the log's thread writes more than half of the time and would "
      "be done sooner");
}

void check_log(const OptionSet& options, const Deck& deck) {
  if (deck.log.payload != LogPayload::sum && deck.log.compression == LogCompression::deflate) {
    throw options.error("log.compression", "deflate is for sums: log.payload sum", {"log.payload"});
  }
  if (deck.log.payload == LogPayload::push && deck.delay.compensation > 0) {
    throw options.error("log.payload",
                        "push holds gradients as workers sent them, and staleness.compensation changes them by older "
                        "parameters, which a replay would not have; use sum",
                        {"staleness.compensation"});
  }
}

}  // namespace hat
