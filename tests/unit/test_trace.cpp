#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "hat/metrics/trace.hpp"
#include "io_support.hpp"

namespace hat {
namespace {

using Role = TraceRecorder::Role;

TraceEvent stretch(Activity activity, double begin_s, double end_s, int64_t step = 0) {
  return {.activity = activity, .begin_s = begin_s, .end_s = end_s, .step = step};
}

TraceEvent event(TraceKind kind, double begin_s, double end_s, int64_t step, int64_t version) {
  return {.kind = kind, .begin_s = begin_s, .end_s = end_s, .step = step, .version = version, .block = 0, .part = 0};
}

TEST(TraceRecorder, EqualAndVeryShortStretchesAreOne) {
  TraceRecorder recorder(Role::worker, 0, 100);
  recorder.add_activity(stretch(Activity::compute, 1.0, 2.0));
  recorder.add_activity(stretch(Activity::compute, 2.0, 3.0));
  recorder.add(event(TraceKind::backward, 1, 2, 0, 0));  // lies between
  recorder.add_activity(stretch(Activity::other, 3.0, 3.0 + 5e-7));
  recorder.add_activity(stretch(Activity::wait_pull, 3.0 + 5e-7, 4.0));
  ASSERT_EQ(recorder.events().size(), 3U);
  EXPECT_EQ(recorder.events()[0].end_s, 3.0 + 5e-7);
  EXPECT_EQ(recorder.events()[2].begin_s, 3.0 + 5e-7) << "no gap";
  recorder.add_activity(stretch(Activity::wait_pull, 4.0, 5.0, 1));
  EXPECT_EQ(recorder.events().size(), 4U) << "of another step";
}

TEST(TraceRecorder, StepsBehindTheLastAreLeftOut) {
  TraceRecorder recorder(Role::worker, 0, 2);
  for (int64_t step = 0; step < 4; ++step) {
    const auto at = static_cast<double>(step);
    recorder.add_activity(stretch(Activity::compute, at, at + 1, step));
    recorder.add(event(TraceKind::push, at, at + 1, step, 0));
  }
  EXPECT_EQ(recorder.events().size(), 4U);
  EXPECT_EQ(recorder.dropped(), 0);
}

TEST(TraceRecorder, MemoryIsBoundedAndTheRestCounted) {
  TraceRecorder recorder(Role::server, 0, 100);
  for (int64_t i = 0; i < TraceRecorder::kMostEvents + 5; ++i) recorder.add(event(TraceKind::adding, 0, 1, 0, 0));
  recorder.add_activity(stretch(Activity::compute, 0, 1));
  EXPECT_EQ(static_cast<int64_t>(recorder.events().size()), TraceRecorder::kMostEvents);
  EXPECT_EQ(recorder.dropped(), 6);
}

class TraceFileTest : public ::testing::Test {
 protected:
  nlohmann::json write(const std::vector<RoleTrace>& traces) {
    TraceFile file(path_, {"head"}, 10.0);
    for (const RoleTrace& trace : traces) file.add(trace);
    file.close();
    const nlohmann::json events = nlohmann::json::parse(test::read_bytes(path_));
    EXPECT_EQ(static_cast<int64_t>(events.size()), file.events());
    return events;
  }
  static std::vector<nlohmann::json> of_phase(const nlohmann::json& events, const std::string& phase) {
    std::vector<nlohmann::json> found;
    for (const nlohmann::json& event : events) {
      if (event.at("ph") == phase) found.push_back(event);
    }
    return found;
  }
  test::TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "trace.json";
};

TEST_F(TraceFileTest, SpansNamesAndTimes) {
  const nlohmann::json events = write(
      {{.role = Role::worker,
        .number = 3,
        .dropped = 0,
        .events = {stretch(Activity::wait_barrier, 10.5, 11.0, 7), event(TraceKind::ring, 10.25, 10.75, 7, -1)}}});
  const auto spans = of_phase(events, "X");
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0].at("name"), "wait_barrier");
  EXPECT_DOUBLE_EQ(spans[0].at("ts"), 500'000);
  EXPECT_DOUBLE_EQ(spans[0].at("dur"), 500'000);
  EXPECT_EQ(spans[0].at("args").at("step"), 7);
  EXPECT_FALSE(spans[0].at("args").contains("unit"));
  ASSERT_EQ(of_phase(events, "b").size(), 1U);
  ASSERT_EQ(of_phase(events, "e").size(), 1U);
  EXPECT_EQ(of_phase(events, "b")[0].at("id"), of_phase(events, "e")[0].at("id"));
  EXPECT_EQ(of_phase(events, "b")[0].at("name"), "ring head");
  const auto names = of_phase(events, "M");
  EXPECT_TRUE(std::any_of(names.begin(), names.end(), [](const nlohmann::json& event) {
    return event.at("name") == "process_name" && event.at("args").at("name") == "worker 3";
  }));
}

// A push of step 1 goes into the update of step 1, which makes version 2; the first of two uses of it ends the arrow.
// The push of step 2 has no update in the trace, version 3 was not published in it: no arrows.
TEST_F(TraceFileTest, ArrowsHaveBothEnds) {
  TraceEvent push = event(TraceKind::push, 11, 12, 1, 1);
  push.unit = 5;
  const nlohmann::json events =
      write({{.role = Role::worker,
              .number = 0,
              .dropped = 0,
              .events = {stretch(Activity::compute, 10, 20), push, event(TraceKind::push, 12, 13, 2, 2),
                         event(TraceKind::forward, 16, 17, 2, 2), event(TraceKind::forward, 15, 16, 2, 2),
                         event(TraceKind::forward, 17, 18, 3, 3)}},
             {.role = Role::server,
              .number = 0,
              .dropped = 0,
              .events = {event(TraceKind::publish, 14, 14.5, 1, 2), event(TraceKind::update, 13, 14.5, 1, 2)}}});
  const auto starts = of_phase(events, "s");
  const auto ends = of_phase(events, "f");
  ASSERT_EQ(starts.size(), 2U);
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_EQ(starts[0].at("name"), "push");
  EXPECT_DOUBLE_EQ(starts[0].at("ts"), 1e6);
  EXPECT_DOUBLE_EQ(ends[0].at("ts"), 3e6);
  EXPECT_EQ(starts[1].at("name"), "pull");
  EXPECT_DOUBLE_EQ(starts[1].at("ts"), 4e6);
  EXPECT_DOUBLE_EQ(ends[1].at("ts"), 5e6);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(starts[i].at("id"), ends[i].at("id"));
  EXPECT_NE(starts[0].at("id"), starts[1].at("id"));
}

TEST_F(TraceFileTest, NothingRecordedIsStillJson) { EXPECT_TRUE(write({}).empty()); }

}  // namespace
}  // namespace hat
