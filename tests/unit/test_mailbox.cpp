#include <gtest/gtest.h>

#include <cstring>

#include "hat/comm/mailbox.hpp"
#include "hat/core/error.hpp"

namespace hat {
namespace {

template <class Message>
std::vector<std::byte> mail_of(Message message) {
  MessageWriter writer;
  writer(Message::kKind);
  message.fields(writer);
  return writer.take();
}

/// Through the bytes and back, as a mail from rank 3.
template <class Message>
Message sent(const Message& message) {
  Mail mail({.source = 3, .tag = 1, .data = mail_of(message)});
  EXPECT_EQ(mail.kind(), Message::kKind);
  EXPECT_EQ(mail.source(), 3);
  return mail.open<Message>();
}

/// Equal bytes mean equal fields: every field is written.
template <class Message>
void expect_same(const Message& message) {
  EXPECT_EQ(mail_of(sent(message)), mail_of(message));
}

TEST(Messages, EveryFieldOfEveryMessageArrives) {
  const auto request = sent(LeaseRequest{.worker = 1, .idle = true, .closed_step = 3});
  EXPECT_EQ(request.worker, 1);
  EXPECT_TRUE(request.idle);
  EXPECT_EQ(request.closed_step, 3);

  const Lease lease = sent(Lease{.kind = LeaseKind::evaluate,
                                 .unit = 1,
                                 .generation = 2,
                                 .step = 3,
                                 .order = 4,
                                 .sequences = {{.document = 6, .begin = 7, .length = 8}, {.document = 9}}});
  EXPECT_EQ(lease.kind, LeaseKind::evaluate);
  EXPECT_EQ(lease.unit, 1);
  EXPECT_EQ(lease.generation, 2);
  EXPECT_EQ(lease.step, 3);
  EXPECT_EQ(lease.order, 4);
  EXPECT_EQ(lease.sequences, (std::vector<Sequence>{{6, 7, 8}, {9, 0, 0}}));

  const PushHeader push = sent(PushHeader{.worker = 1,
                                          .sequence_number = 2,
                                          .generation = 3,
                                          .step = 4,
                                          .block = 5,
                                          .begin = int64_t{1} << 40,
                                          .count = 7,
                                          .tokens = 8,
                                          .complete = true,
                                          .base_version = 9,
                                          .order = 10,
                                          .norm = 0.125,
                                          .units = {11, 12}});
  EXPECT_EQ(push.worker, 1);
  EXPECT_EQ(push.sequence_number, 2);
  EXPECT_EQ(push.generation, 3);
  EXPECT_EQ(push.step, 4);
  EXPECT_EQ(push.block, 5);
  EXPECT_EQ(push.begin, int64_t{1} << 40);
  EXPECT_EQ(push.count, 7);
  EXPECT_EQ(push.tokens, 8);
  EXPECT_TRUE(push.complete);
  EXPECT_EQ(push.base_version, 9);
  EXPECT_EQ(push.order, 10);
  EXPECT_EQ(push.norm, 0.125);
  EXPECT_EQ(push.codec, Codec::fp32);
  EXPECT_EQ(push.units, (std::vector<int64_t>{11, 12}));

  const auto report = sent(UnitReport{.worker = 1, .unit = 2, .generation = 3, .step = 4, .nats = 5.5, .tokens = 6});
  EXPECT_EQ(report.unit, 2);
  EXPECT_EQ(report.nats, 5.5);
  EXPECT_EQ(report.tokens, 6);
  EXPECT_EQ(sent(UnitReport{.account = {.seconds = {3.5}}}).account.seconds, (std::vector<double>{3.5}));

  const AccountReading account{
      .seconds = {0.5, 1.5}, .mpi_seconds = 0.25, .barrier_transfer_seconds = 0.125, .block_wait_seconds = {4, 5, 6}};
  const auto summary = sent(WorkerSummary{
      .worker = 1, .account = account, .tokens = 2, .sample = "two\nlines", .wall_seconds = 2.5, .node_joules = 7.5});
  EXPECT_EQ(summary.account.seconds, account.seconds);
  EXPECT_EQ(summary.account.mpi_seconds, 0.25);
  EXPECT_EQ(summary.account.barrier_transfer_seconds, 0.125);
  EXPECT_EQ(summary.account.block_wait_seconds, account.block_wait_seconds);
  EXPECT_EQ(summary.wall_seconds, 2.5);
  EXPECT_EQ(summary.node_joules, 7.5);
  EXPECT_EQ(summary.sample, "two\nlines");

  expect_same(EvaluationReport{.unit = 1, .nats = 2.5, .tokens = 3});
  expect_same(NormShare{.server = 1, .step = 2, .block = 3, .sum_of_squares = 4.5});
  expect_same(NormTotal{.step = 1, .norm = 2.5});
  expect_same(StepComplete{.server = 1,
                           .step = 2,
                           .block_staleness = {{.block = 5, .late = 6, .pushes = 7}},
                           .base_versions = {{.block = 8, .oldest = 9, .newest = 10}},
                           .pushes_over_limit = {3, 0, 4}});
  expect_same(CheckpointWritten{.server = 1, .step = 2, .blocks = {3, 4}, .versions = {5, 6}});
  expect_same(Shutdown{});
}

TEST(Messages, BytesOfTextMayBeAnything) {
  std::string text(300, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i);
  WorkerSummary summary;
  summary.sample = text;
  EXPECT_EQ(sent(summary).sample, text);
}

// Wherever a message is cut, opening it is an Error, never a read beyond its end.
TEST(Messages, CutShortIsAnError) {
  const std::vector<std::byte> whole = mail_of(PushHeader{.worker = 1, .units = {1, 2, 3}});
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_THROW(
        {
          Mail mail({.source = 0, .tag = 1, .data = cut});
          mail.open<PushHeader>();
        },
        Error)
        << "after " << size << " bytes";
  }
}

TEST(Messages, CountsThatCannotBeAreErrors) {
  for (const int64_t count : {int64_t{-1}, int64_t{4}, int64_t{1} << 61, INT64_MAX, INT64_MIN}) {
    std::vector<std::byte> bytes = mail_of(StepComplete{.server = 1, .step = 2, .pushes_over_limit = {5, 6, 7}});
    // The count stands before its three values.
    const size_t place = bytes.size() - 4 * sizeof(int64_t);
    std::memcpy(bytes.data() + place, &count, sizeof count);
    Mail mail({.source = 0, .tag = 1, .data = bytes});
    EXPECT_THROW(mail.open<StepComplete>(), Error) << count;
  }
}

}  // namespace
}  // namespace hat
