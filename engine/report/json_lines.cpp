// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/report/json_lines.h"

#include "tessera/runtime/core/error.h"

#include <nlohmann/json.hpp>

#include <utility>

namespace tessera::engine {

JsonLinesWriter::JsonLinesWriter(std::filesystem::path path, Mode mode)
    : file_(
          std::move(path),
          "the metrics file",
          mode == Mode::kNew ? AppendedFile::Mode::kNew
                             : AppendedFile::Mode::kAppendLines) {}

void JsonLinesWriter::write(const nlohmann::ordered_json& object) {
  TESSERA_CHECK(
      object.is_object(),
      "{}: a line must be a JSON object, not {}",
      file_.path().string(),
      object.type_name());
  file_.append(
      object.dump(
          -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
      "\n");
}

} // namespace tessera::engine
