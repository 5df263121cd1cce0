// SPDX-License-Identifier: Apache-2.0
// Layers of models on the virtual device: what they ask of the host, and which
// kernels they call there.
#include "support/vdev/vdev.h"
#include "tessera/zoo/layers/attention_function.h"
#include "tessera/zoo/layers/positions.h"
#include "tessera/zoo/layers/rotary.h"
#include "vdev/waits.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string_view>
#include <vector>

namespace tessera::tests::vdev::vdev_layers_test {

namespace {

using Order = Policy::Order;

constexpr int64_t kLength = 12;

/// While it lives, notes the sizes of the keys in calls of LibTorch's fused
/// attention.
class AttentionCalls {
 public:
  AttentionCalls() {
    key_heads.clear();
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(
            [](const at::RecordFunction& call)
                -> std::unique_ptr<at::ObserverContext> {
              if (std::string_view(call.name()) ==
                  "aten::scaled_dot_product_attention") {
                key_heads.push_back(call.inputs()[1].toTensor().size(1));
              }
              return nullptr;
            })
            .needsInputs(true)
            .scopes({at::RecordScope::FUNCTION}));
  }
  ~AttentionCalls() {
    at::removeCallback(handle_);
  }
  AttentionCalls(const AttentionCalls&) = delete;
  AttentionCalls& operator=(const AttentionCalls&) = delete;

  static inline std::vector<int64_t> key_heads;

 private:
  at::CallbackHandle handle_;
};

} // namespace

TEST(Positions, TablesDoNotBlockTheHost) {
  run_ranks_on_vdev(1, {Order::kLazy}, [](World& world) {
    for (const auto scaling :
         {zoo::RotaryScalingKind::kNone, zoo::RotaryScalingKind::kDynamic}) {
      zoo::RotaryOptions options;
      options.features = 8;
      options.scaling.kind = scaling;
      options.scaling.factor = 2;
      options.max_positions = kLength / 2;
      const auto table_on = [&](c10::Device device) {
        return zoo::rotary_tables(
            options,
            torch::arange(kLength, torch::dtype(at::kLong).device(device))
                .unsqueeze(0),
            kLength,
            at::kFloat);
      };
      zoo::RotaryTables tables;
      EXPECT_EQ(
          waits_of([&] { tables = table_on(world.device()); }), (Waits{0, 0}));
      EXPECT_TRUE(
          torch::equal(tables.cosines.cpu(), table_on(at::kCPU).cosines));
    }
  });
}

// LibTorch's fused kernels for devices take a mask or grouped heads, not both.
TEST(FusedAttention, KeyHeadsAreRepeatedWhereThereIsAMask) {
  run_ranks_on_vdev(1, {Order::kLazy}, [](World& world) {
    torch::manual_seed(1);
    zoo::AttentionCall call;
    call.query = torch::randn({2, 6, kLength, 8});
    call.key = torch::randn({2, 2, kLength, 8});
    call.value = torch::randn({2, 2, kLength, 8});
    call.scale = 0.3;
    const at::Tensor mask = torch::ones({kLength, kLength}, at::kBool).tril();
    const auto on = [&](c10::Device device, bool is_masked) {
      zoo::AttentionCall moved = call;
      moved.query = call.query.to(device);
      moved.key = call.key.to(device);
      moved.value = call.value.to(device);
      moved.mask = is_masked ? mask.to(device) : at::Tensor();
      moved.causal = !is_masked;
      return moved;
    };
    const at::Tensor expected = plain_attention(on(at::kCPU, true));
    const AttentionCalls calls;
    for (const bool is_masked : {true, false}) {
      for (const c10::Device device : {world.device(), c10::Device(at::kCPU)}) {
        EXPECT_TRUE(torch::allclose(
            fused_attention(on(device, is_masked)).cpu(),
            expected,
            1e-5,
            1e-6));
      }
    }
    EXPECT_EQ(AttentionCalls::key_heads, (std::vector<int64_t>{6, 2, 2, 2}));
  });
}

} // namespace tessera::tests::vdev::vdev_layers_test
