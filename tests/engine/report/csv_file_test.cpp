// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/report/csv_file.h"

#include "support/temporary_folder.h"
#include "tessera/runtime/io/atomic_file.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <limits>

namespace tessera::engine::csv_file_test {

using Line = nlohmann::ordered_json;

TEST(CsvWriter, HasAColumnForEachNameInTheOrderOfAppearance) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "metrics.csv";
  const auto text = [&] { return runtime::read_text_file(path); };
  CsvWriter writer(path, {});
  EXPECT_EQ(text(), "");
  writer.write({{"step", 1}, {"loss", 0.5}});
  EXPECT_EQ(text(), "step,loss\n1,0.5\n");
  writer.write({{"step", 2}, {"loss", nullptr}});
  writer.write(
      {{"step", 3}, {"loss", std::numeric_limits<double>::quiet_NaN()}});
  EXPECT_EQ(text(), "step,loss\n1,0.5\n2,\n3,\n");
  // A new name: earlier rows get an empty field.
  writer.write({{"step", 4}, {"heldout_loss", 2}});
  EXPECT_EQ(text(), "step,loss,heldout_loss\n1,0.5,\n2,,\n3,,\n4,,2\n");
  writer.write({{"step", 5}, {"loss", 0.25}});
  EXPECT_TRUE(text().ends_with("4,,2\n5,0.25,\n"));
}

TEST(CsvWriter, BeginsWithTheLinesOfAResumedRun) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "metrics.csv";
  {
    CsvWriter first(path, {});
    first.write({{"step", 1}, {"a,\"b\"", 1}});
    first.write({{"step", 2}, {"a,\"b\"", 2}});
  }
  CsvWriter resumed(path, {Line{{"step", 1}, {"a,\"b\"", 1}}});
  resumed.write({{"step", 2}, {"a,\"b\"", 3}});
  EXPECT_EQ(runtime::read_text_file(path), "step,\"a,\"\"b\"\"\"\n1,1\n2,3\n");
}

} // namespace tessera::engine::csv_file_test
