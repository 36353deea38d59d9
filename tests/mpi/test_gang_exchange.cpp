#include <cmath>

#include "hat/core/error.hpp"
#include "hat/gradient/run_plan.hpp"
#include "mpi_test_main.hpp"
#include "worker/gang_exchange.hpp"

// What the members of a gang send each other arrives at whom it is for, layer by layer, whoever is late. Every rank is
// a worker.

namespace hat {
namespace {

constexpr int64_t kLayers = 3;

RunPlan plan_of(int workers, WireFormat wire, Element arithmetic) {
  Deck deck;
  deck.model = {.width = 16, .layers = kLayers, .heads = 4, .kv_heads = 2, .mlp_width = 12, .vocabulary = 20};
  deck.gang.wire = wire;
  std::vector<int> nodes(static_cast<size_t>(workers) + 1, 0);
  RunPlan plan = make_run_plan(deck, plan_roles(nodes, 1, Placement::packed));
  plan.compute.arithmetic = arithmetic;
  group_workers(plan, nodes);
  return plan;
}

/// Number `i` of what member `from` of a gang sends of a layer: exact in bf16.
float value(int64_t gang, int64_t layer, int64_t from, int64_t to, int64_t i) {
  return static_cast<float>((gang * 7 + layer * 5 + from * 3 + to * 11 + i) % 64) - 32;
}

struct Member {
  Member(const RunPlan& run_plan, const Communicator& ranks)
      : plan(run_plan),
        waiting("worker", 20, account, [this] { exchange.advance(); }),
        exchange(plan, ranks, waiting, account) {}

  /// A pass in which member `late` begins last and does its layers slowly.
  void pass(int64_t gang, const GangRange& range, const std::vector<int64_t>& workers, int64_t late) {
    const Element stored = plan.compute.arithmetic;
    const int64_t width = key_value_elements(plan.deck.model) / kLayers;
    const auto pause = [&] {
      const double until = now_s() + (range.member == late ? 0.01 : 0);
      while (now_s() < until) exchange.progress();
    };
    pause();
    exchange.begin(range, workers, nullptr, nullptr, 0, gang);
    std::vector<float> fp32;
    std::vector<bfloat16> bf16;
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      pause();
      const auto count = static_cast<size_t>(range.tokens() * width);
      fp32.resize(count);
      bf16.resize(count);
      for (size_t i = 0; i < count; ++i) fp32[i] = value(gang, layer, range.member, 0, static_cast<int64_t>(i));
      to_bfloat16(std::span<const float>(fp32), bf16);
      exchange.send_keys_values(layer, stored == Element::bf16 ? ConstValues(bf16.data()) : ConstValues(fp32.data()));
      std::ranges::fill(fp32, NAN);  // may be used again at once
      std::ranges::fill(bf16, to_bfloat16(NAN));
      for (int64_t member = range.member; member-- > 0;) expect_earlier(gang, range, layer, member, width);
    }
    for (int64_t layer = kLayers; layer-- > 0;) {
      pause();
      for (int64_t member = 0; member < range.member; ++member) {
        expect_earlier(gang, range, layer, member, width);  // the same again
        fp32.resize(static_cast<size_t>(range.tokens_of(member) * width));
        for (size_t i = 0; i < fp32.size(); ++i) {
          fp32[i] = value(gang, layer, range.member, member, static_cast<int64_t>(i));
        }
        exchange.send_gradients(layer, member, fp32.data());
        std::ranges::fill(fp32, NAN);
      }
      for (int64_t member = range.member + 1; member < range.members(); ++member) {
        const float* gradients = exchange.wait_later(layer, member);
        for (int64_t i = 0; i < range.tokens() * width; ++i) {
          ASSERT_EQ(gradients[i], value(gang, layer, member, range.member, i)) << "layer " << layer << " of " << member;
        }
      }
      exchange.release(layer);
    }
  }

  void expect_earlier(int64_t gang, const GangRange& range, int64_t layer, int64_t member, int64_t width) {
    const ConstValues values = exchange.wait_earlier(layer, member);
    ASSERT_EQ(values.element(), plan.compute.arithmetic);
    for (int64_t i = 0; i < range.tokens_of(member) * width; ++i) {
      const float got = values.element() == Element::bf16 ? to_float(values.bf16()[i]) : values.fp32()[i];
      ASSERT_EQ(got, value(gang, layer, member, 0, i)) << "layer " << layer << " of member " << member;
    }
  }

  const RunPlan& plan;
  Account account;
  Waiting waiting;
  GangExchange exchange;
};

TEST(GangExchange, EverythingArrivesWhereItBelongs) {
  const Communicator world = Communicator::world();
  const int64_t ranks = world.size();
  for (const Element arithmetic : {Element::fp32, Element::bf16}) {
    for (const WireFormat wire : {WireFormat::fp32, WireFormat::bf16}) {
      const RunPlan plan = plan_of(world.size(), wire, arithmetic);
      Member self(plan, world);
      // Gangs in a row, the members in another order each time, of ranges of other lengths; somebody is late.
      for (int64_t gang = 0; gang < 2 * ranks; ++gang) {
        GangRange range{.bounds = {0}};
        std::vector<int64_t> workers;
        for (int64_t member = 0; member < ranks; ++member) {
          workers.push_back((member * (gang % 2 == 0 ? 1 : -1) + gang + ranks) % ranks);
          if (workers.back() == world.rank()) range.member = member;
          range.bounds.push_back(range.bounds.back() + 1 + (gang * 3 + member) % 5);
        }
        self.pass(gang, range, workers, gang % ranks);
      }
      self.waiting.until(Activity::wait_gang, "messages to leave", [&] { return self.exchange.is_idle(); });
      EXPECT_EQ(self.exchange.sent_bytes() > 0, ranks > 1);
      const AccountReading reading = self.account.reading();
      EXPECT_LE(reading.gang_transfer_seconds, reading.seconds[static_cast<size_t>(Activity::wait_gang)] + 1e-9);
    }
  }
}

}  // namespace
}  // namespace hat

int main(int argc, char** argv) { return hat::test::run_mpi_tests(argc, argv); }
