#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "hat/comm/communicator.hpp"

namespace hat {

/// Where the versions of one part (a run of fp32 values owned by one server) lie in that server's window:
///   int64 latest                       newest version published
///   slot 0 .. slots - 1, each: int64 version, then the values
/// Version v lies in slot v % slots. All offsets in bytes, multiples of 64.
///
/// Who may touch what. The header of a slot says in which state it is:
///   header          owner             pullers
///   kBeingWritten   writes the body   must not use what they read
///   v >= 0          reads only        may use a body read while the header said v before and after
struct PartSlots {
  int server_rank = 0;  ///< rank in the window's communicator
  int64_t offset = 0;   ///< of `latest`
  int64_t count = 0;    ///< fp32 values
  int64_t slots = 0;

  static constexpr int64_t kHeaderBytes = 64;
  static constexpr int64_t kBeingWritten = -1;
  static constexpr int64_t kNothingYet = -2;

  int64_t slot_bytes() const { return kHeaderBytes + (count * 4 + 63) / 64 * 64; }
  int64_t size_bytes() const { return kHeaderBytes + slots * slot_bytes(); }
  int64_t header_offset(int64_t version) const { return offset + kHeaderBytes + version % slots * slot_bytes(); }
  int64_t body_offset(int64_t version) const { return header_offset(version) + kHeaderBytes; }
};

/// The owner's side of one part. Lives on the rank that owns the window memory.
class SlotPublisher {
 public:
  /// Marks all slots as empty.
  SlotPublisher(const Window& window, const PartSlots& part);

  /// Opens the slot of `version` for writing; whatever version it held is gone for pullers from now on.
  std::span<float> begin(int64_t version);
  /// Makes the version visible, and `latest`.
  void publish(int64_t version);

  int64_t latest() const { return latest_; }
  /// Values of a version that is still held.
  std::span<const float> values(int64_t version) const;

 private:
  int64_t* word(int64_t offset) const;
  void store(int64_t offset, int64_t value) const;

  const Window* window_;
  PartSlots part_;
  int64_t latest_ = PartSlots::kNothingYet;
};

/// What pulls have seen, for metrics and tests.
struct PullCounters {
  int64_t accepted = 0;  ///< blocks taken
  int64_t rejected = 0;  ///< bodies thrown away because the header changed under the read
  int64_t polls = 0;     ///< headers read before the version was there
  int64_t bytes = 0;     ///< body bytes read, thrown away ones included
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
  /// A part and where its values go.
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
  bool step();
  int64_t version() const { return version_; }
  int64_t wanted() const { return wanted_; }

 private:
  enum class State { look, headers, bodies, headers_again, done };
  void start_look();
  void start_headers();
  void start_bodies();
  void start_headers_again();
  bool all_complete();
  void restart();

  const Window* window_;
  std::vector<Target> targets_;
  int64_t wanted_;
  Rule rule_;
  int64_t have_;
  PullCounters* counters_;
  PullCheck check_;
  State state_ = State::look;
  int64_t version_ = 0;
  std::vector<int64_t> words_;
  std::vector<Request> requests_;
};

}  // namespace hat
