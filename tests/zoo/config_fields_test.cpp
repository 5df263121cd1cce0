// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/config_fields.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera::zoo::config_fields_test {

// Messages about a model's layers list what was read of its file.
TEST(ConfigFields, RecordEveryFieldThatIsRead) {
  const ConfigFields fields(
      {{"layer_norm_epsilon", 0.25},
       {"eos_token_id", 3},
       {"attn_pdrop", 0.5},
       {"d_model", 8}},
      "config.json");
  EXPECT_EQ(fields.number({"eps", "layer_norm_epsilon"}, 1), 0.25);
  EXPECT_EQ(fields.number({"scale"}, 1), 1);
  EXPECT_EQ(fields.token({"eos_token_id"}, 10), 3);
  EXPECT_EQ(fields.token({"pad_token_id"}, 10), std::nullopt);
  EXPECT_EQ(fields.probability({"attn_pdrop"}), 0.5);
  EXPECT_EQ(fields.size({"d_model"}), 8);
  EXPECT_EQ(
      fields.record().text(),
      "layer_norm_epsilon 0.25, scale not given, eos_token_id 3, pad_token_id "
      "not given, attn_pdrop 0.5, d_model 8");
}

} // namespace tessera::zoo::config_fields_test
