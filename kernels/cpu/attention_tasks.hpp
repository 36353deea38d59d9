#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "hat/kernels/operations.hpp"

/// How the attention of a batch is divided among threads. Tasks are numbered in the order in which they start; a thread
/// takes the next one when it is free, so a task may wait for ones with lower numbers.
namespace hat::cpu {

/// Arrays cut one after another from a workspace; with a null workspace only their size is found.
class Carver {
 public:
  explicit Carver(float* workspace) : workspace_(workspace) {}

  float* take(int64_t floats) {
    float* taken = workspace_ == nullptr ? nullptr : workspace_ + used_;
    used_ += (floats + kAlignment - 1) / kAlignment * kAlignment;
    return taken;
  }
  template <typename T>
  T* take_as(int64_t count) {
    static_assert(sizeof(T) % sizeof(float) == 0);
    return reinterpret_cast<T*>(take(count * static_cast<int64_t>(sizeof(T) / sizeof(float))));
  }
  int64_t used() const { return used_; }

 private:
  static constexpr int64_t kAlignment = 16;  // floats in a cache line
  float* workspace_;
  int64_t used_ = 0;
};

/// The tasks of a batch: those of its longest document first, so that short ones fill the gaps at the end.
class TaskList {
 public:
  TaskList(Carver& carver, const AttentionShape& shape)
      : shape_(&shape),
        order_(carver.take_as<int64_t>(shape.documents)),
        first_task_(carver.take_as<int64_t>(shape.documents + 1)) {}

  /// tasks_of(document): how many tasks it is.
  template <typename TasksOf>
  void number(const TasksOf& tasks_of) {
    const int64_t documents = shape_->documents;
    for (int64_t i = 0; i < documents; ++i) order_[i] = i;
    std::sort(order_, order_ + documents,
              [this](int64_t a, int64_t b) { return length(a) != length(b) ? length(a) > length(b) : a < b; });
    first_task_[0] = 0;
    for (int64_t i = 0; i < documents; ++i) first_task_[i + 1] = first_task_[i] + tasks_of(order_[i]);
  }

  int64_t length(int64_t document) const { return shape_->offsets[document + 1] - shape_->offsets[document]; }

  /// Calls work(document, task of the document) for every task.
  template <typename Work>
  void run(int threads, const Work& work) const {
    std::atomic<int64_t> next = 0;
#pragma omp parallel num_threads(threads)
    {
      const int64_t* end = first_task_ + shape_->documents + 1;
      for (int64_t task = next++; task < end[-1]; task = next++) {
        const int64_t* first = std::upper_bound(static_cast<const int64_t*>(first_task_), end, task) - 1;
        work(order_[first - first_task_], task - *first);
      }
    }
  }

 private:
  const AttentionShape* shape_;
  int64_t* order_;       // (documents)
  int64_t* first_task_;  // (documents + 1)
};

/// Whose turn it is to add to each of many sums, so that the order of the summands is always the same.
class Turns {
 public:
  explicit Turns(int32_t* turns, int64_t count) : turns_(turns) { std::fill_n(turns, count, 0); }
  void wait(int64_t sum, int32_t turn) const {
    const std::atomic_ref<int32_t> current(turns_[sum]);
    for (int32_t seen = current.load(); seen != turn; seen = current.load()) current.wait(seen);
  }
  void pass_on(int64_t sum) const {
    const std::atomic_ref<int32_t> current(turns_[sum]);
    ++current;
    current.notify_all();
  }

 private:
  int32_t* turns_;
};

}  // namespace hat::cpu
