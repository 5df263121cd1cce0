// SPDX-License-Identifier: Apache-2.0
// Layers that are declared for tensor parallelism.
#include "tessera/runtime/comm/communicator.h"
#include "tessera/zoo/layers/embedding.h"
#include "tessera/zoo/layers/linear.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace tessera::zoo::declared_layers_test {

// Initial values of what is not declared, such as position tables, depend on
// the seed, not on how many layers are declared before them: a seed gives the
// same model as in earlier versions.
TEST(DeclaredLayers, DrawNoRandomNumbers) {
  Communicator alone("alone");
  const LayerContext context(TensorParallel{&alone});
  torch::nn::Module owner("owner");
  torch::manual_seed(5);
  const at::Tensor expected = torch::randn({8});
  torch::manual_seed(5);
  Linear::column(owner, "linear", context, {6, 9});
  Embedding table(owner, "table", context, {.rows = 7, .features = 6});
  EXPECT_TRUE(torch::randn({8}).equal(expected));
}

} // namespace tessera::zoo::declared_layers_test
