// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/report/json_lines.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "support/expect_error.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/io/atomic_file.h"

namespace tessera::engine::json_lines_test {

using nlohmann::ordered_json;
using Mode = JsonLinesWriter::Mode;

TEST(JsonLines, EachLineIsInTheFileAtOnce) {
  TemporaryFolder folder;
  const auto path = folder / "metrics.jsonl";
  runtime::write_file_atomically(path, "old\n");
  JsonLinesWriter writer(path);
  EXPECT_EQ(runtime::read_text_file(path), "");
  writer.write(ordered_json{{"step", 1}, {"loss", 0.5}, {"a", "x\ny"}});
  EXPECT_EQ(
      runtime::read_text_file(path),
      "{\"step\":1,\"loss\":0.5,\"a\":\"x\\ny\"}\n");
  writer.write(ordered_json{{"loss", std::nan("")}});
  EXPECT_EQ(
      runtime::read_text_file(path),
      "{\"step\":1,\"loss\":0.5,\"a\":\"x\\ny\"}\n{\"loss\":null}\n");
}

TEST(JsonLines, AppendingCutsATornLine) {
  TemporaryFolder folder;
  const auto path = folder / "metrics.jsonl";
  const auto append = [&](const std::string& before) {
    runtime::write_file_atomically(path, before);
    JsonLinesWriter(path, Mode::kAppend).write(ordered_json{{"n", 2}});
    return runtime::read_text_file(path);
  };
  EXPECT_EQ(append(""), "{\"n\":2}\n");
  EXPECT_EQ(append("{\"n\":1}\n"), "{\"n\":1}\n{\"n\":2}\n");
  EXPECT_EQ(append("{\"n\":1}\n{\"n"), "{\"n\":1}\n{\"n\":2}\n");
  EXPECT_EQ(append("{\"n"), "{\"n\":2}\n");
  // A tail longer than what is read at once.
  const std::string tail(10'000, 'x');
  EXPECT_EQ(append("{}\n" + tail), "{}\n{\"n\":2}\n");
  EXPECT_EQ(append(tail), "{\"n\":2}\n");
}

TEST(JsonLines, RefusesWhatIsNoObjectAndNamesAFileItCannotOpen) {
  TemporaryFolder folder;
  JsonLinesWriter writer(folder / "m");
  expect_error([&] { writer.write(3); }, {"m: ", "JSON object", "number"});
  expect_error(
      [&] { JsonLinesWriter(folder / "no" / "m"); },
      {"no/m'", "No such file", "check the path"});
}

} // namespace tessera::engine::json_lines_test
