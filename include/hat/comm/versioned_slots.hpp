#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "hat/comm/communicator.hpp"
#include "hat/config/deck.hpp"
#include "hat/core/bfloat16.hpp"

namespace hat {

/// Where the versions of one part (a run of values owned by one server) lie in that server's window:
///   int64 latest                       newest version published
///   slot 0 .. slots - 1, each: header (int64 version, int64 push_travel_ns), then the values in `format`
/// Version v lies in slot v % slots. All offsets in bytes, multiples of 64.
///
/// Who may touch what. The header of a slot says in which state it is:
///   header          owner             pullers
///   kBeingWritten   writes the body   must not use what they read
///   v >= 0          reads only        may use a body read while the header said v before and after
struct PartSlots {
  int server_rank = 0;  ///< rank in the window's communicator
  int64_t offset = 0;   ///< of `latest`
  int64_t count = 0;    ///< values
  int64_t slots = 0;
  PullFormat format = PullFormat::fp32;

  static constexpr int64_t kHeaderBytes = 64;
  static constexpr int64_t kBeingWritten = -1;
  static constexpr int64_t kNothingYet = -2;

  int64_t body_bytes() const { return count * (format == PullFormat::fp32 ? 4 : 2); }
  int64_t slot_bytes() const { return kHeaderBytes + (body_bytes() + 63) / 64 * 64; }
  int64_t size_bytes() const { return kHeaderBytes + slots * slot_bytes(); }
  int64_t header_offset(int64_t version) const { return offset + kHeaderBytes + version % slots * slot_bytes(); }
  int64_t body_offset(int64_t version) const { return header_offset(version) + kHeaderBytes; }
};

/// The owner's side of one part. Lives on the rank that owns the window memory. The owner's values are fp32:
///   format fp32   those of a version are its slot
///   format bf16   one array outside the window; a slot gets them rounded to the nearest, ties to even, in `publish`
class SlotPublisher {
 public:
  /// Marks all slots as empty.
  SlotPublisher(const Window& window, const PartSlots& part);

  /// Where the values of `version` are to be written: fp32: its slot, and whatever version that held is gone for
  /// pullers from now on; bf16: over values(), element by element. May be called again until the version is published.
  std::span<float> begin(int64_t version);
  /// Makes the version visible, and `latest`. `push_travel_s`: how long the last of the pushes that went into it was on
  /// its way; for the accounts of those who waited.
  void publish(int64_t version, double push_travel_s = 0);

  int64_t latest() const { return latest_; }
  /// Values of the version published last. With bf16 they are already being overwritten once `begin` has been called.
  std::span<const float> values() const;
  /// What pullers get of elements [first, first + values.size()) of `version`. Throws Error when its slot has been
  /// opened for another version.
  void read(int64_t version, int64_t first, std::span<float> values) const;

 private:
  /// Nobody may use what the slot of `version` held.
  void open(int64_t version) const;
  template <class T>
  std::span<T> body(int64_t version) const;
  int64_t* word(int64_t offset) const;
  void store(int64_t offset, int64_t value) const;

  const Window* window_;
  PartSlots part_;
  std::vector<float> values_;  // bf16 only
  int64_t latest_ = PartSlots::kNothingYet;
};

/// The slots of an fp32 part for a reader on the rank that owns them: values are read where they lie. Whoever computes
/// with them must know why the owner does not open their slot meanwhile, and may ask `holds` whether it did.
class OwnSlots {
 public:
  OwnSlots(const Window& window, const PartSlots& part) : window_(&window), part_(part) {}

  int64_t latest() const { return load(part_.offset); }
  /// The slot of `version` has it whole at this moment.
  bool holds(int64_t version) const { return load(part_.header_offset(version)) == version; }
  const float* values(int64_t version) const;
  /// Of a version that is held: SlotPublisher::publish.
  double push_travel_s(int64_t version) const;

 private:
  int64_t load(int64_t offset) const;

  const Window* window_;
  PartSlots part_;
};

/// What pulls have seen, for metrics and tests.
struct PullCounters {
  int64_t accepted = 0;       ///< blocks taken
  int64_t rejected = 0;       ///< bodies thrown away because the header changed under the read
  int64_t polls = 0;          ///< headers read before the version was there
  int64_t bytes = 0;          ///< body bytes read, thrown away ones included
  int64_t skipped = 0;        ///< blocks that had not changed, or were on the node already
  int64_t skipped_bytes = 0;  ///< of those
  int64_t guesses = 0;        ///< blocks asked for before they were needed
  int64_t wrong_guesses = 0;  ///< of those: something else was needed then
};

enum class PullCheck {
  verify,  ///< header, body, header; each get complete before the next
  off,     ///< only to show in a test that the check is needed
};

/// One pull of a block: all its parts, one version. Asynchronous; `step` never blocks.
///   exact:    `wanted` = the version to fetch; polls until it is published
///   freshest: the newest version that all parts hold and that is not older than `wanted`
class SlotPull {
 public:
  enum class Rule { exact, freshest };
  /// A part and where its values go, fp32 whatever the part's format. Undefined until the pull is done.
  struct Target {
    PartSlots part;
    float* values;
  };

  /// `have`: the version the caller holds already; under `freshest` the pull ends without reading anything when that is
  /// still the newest (version() == have then, and the targets are untouched).
  SlotPull(const Window& window, std::vector<Target> targets, int64_t wanted, Rule rule, int64_t have,
           PullCounters& counters, PullCheck check = PullCheck::verify);

  /// True once all parts lie in their targets with one version. Throws Error when the exact version has been
  /// overwritten (it can never arrive then).
  bool step() { return advance(State::done); }
  /// True once the version is published: what is waited for from then on is its way, nobody's work. Reads headers only,
  /// and throws as `step`.
  bool find() { return advance(State::found); }
  int64_t version() const { return version_; }
  /// Once done: `have` was still the newest, and nothing was read.
  bool unchanged() const { return version_ == have_; }
  /// To give a pull up: true once none of its gets is under way. Starts none; the pull must not be stepped any more.
  bool try_end() { return all_complete(); }
  /// While it does not end: its gets write to the targets.
  bool is_writing() const { return state_ == State::bodies; }
  /// Once found: how long the last push that went into it was on its way (SlotPublisher::publish).
  double push_travel_s() const;

 private:
  enum class State { look, headers, found, bodies, headers_again, done };  // in this order
  /// SlotPublisher writes it, in front of a slot's values.
  struct Header {
    int64_t version;
    int64_t push_travel_ns;
  };
  bool advance(State goal);
  void start_look();
  void start_headers();
  void start_bodies();
  void start_headers_again();
  bool all_complete();
  void restart();
  void accept();

  const Window* window_;
  std::vector<Target> targets_;
  int64_t wanted_;
  Rule rule_;
  int64_t have_;
  PullCounters* counters_;
  PullCheck check_;
  State state_ = State::look;
  int64_t version_ = 0;
  std::vector<Header> headers_;  // of the parts; while looking, `latest` as version
  std::vector<Request> requests_;
};

}  // namespace hat
