// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/other_names.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tessera::runtime::other_names_test {

using Names = std::vector<std::string>;

TEST(OtherNames, FollowTheNames) {
  const OtherNames others{{"a", {"x", "y"}}, {"b", {"z"}}};
  EXPECT_EQ(
      with_other_names({"c", "a", "b"}, others),
      (Names{"c", "a", "b", "x", "y", "z"}));
}

TEST(OtherNames, OfModulesAreWhatTheirParametersImply) {
  const OtherNames parameters{
      {"blocks.0.attention.out.weight", {"model.layers.0.self_attn.o.weight"}},
      {"blocks.0.attention.qkv.weight",
       {"model.layers.0.self_attn.q.weight",
        "model.layers.0.self_attn.k.weight"}},
      {"blocks.0.norm.weight", {"model.layers.0.norm1.weight"}},
      {"blocks.1.norm.weight", {"model.layers.1.norm1.weight"}},
      {"blocks2.weight", {"other.weight"}},
      {"head.linear.weight", {"lm_head.weight"}},
      {"scale", {"model.scale"}}};
  const OtherNames names = other_module_names(
      {"blocks",
       "blocks.0",
       "blocks.0.attention",
       "blocks.0.attention.out",
       "blocks.0.attention.qkv",
       "blocks.0.norm",
       "blocks.1",
       "blocks.1.norm",
       "blocks2",
       "empty",
       "head",
       "head.linear"},
      parameters);
  const OtherNames expected{
      {"blocks", {"model.layers"}},
      {"blocks.0", {"model.layers.0"}},
      {"blocks.0.attention", {"model.layers.0.self_attn"}},
      {"blocks.0.attention.out", {"model.layers.0.self_attn.o"}},
      {"blocks.0.attention.qkv",
       {"model.layers.0.self_attn.k", "model.layers.0.self_attn.q"}},
      {"blocks.0.norm", {"model.layers.0.norm1"}},
      // With one parameter, it is what that one is in.
      {"blocks.1", {"model.layers.1.norm1"}},
      {"blocks2", {"other"}},
      {"head", {"lm_head"}}}; // not head.linear: the outermost
  EXPECT_EQ(names, expected);
}

} // namespace tessera::runtime::other_names_test
