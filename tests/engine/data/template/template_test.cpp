// Templates of ours against what jinja2 makes of them (tests/reference/templates/generate.py), and what
// only Sherd has: marks, refusals, bounds.
#include "engine/data/template/template.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "engine/data/template/json_value.h"
#include "tests/support/values/error_text.h"
#include "tests/where.h"

namespace sherd::templates {
namespace {

using Json = nlohmann::ordered_json;

std::string rendered(const std::string& source, const std::string& variables = "{}") {
  return Template::parse(source, "t").render(*value_of_json(variables, kFromData).dict()).bytes;
}

std::string error_of(const std::string& source, const std::string& variables = "{}") {
  return test::error_text<DataError>([&] { rendered(source, variables); });
}

TEST(Template, RendersWhatJinja2Renders) {
  std::ifstream file(std::string(SHERD_SOURCE_DIR) + "/tests/engine/data/template/cases.json");
  const Json document = Json::parse(file);
  const Value variables = value_of_json(document["variables"].dump(), kFromData);
  ASSERT_GT(document["cases"].size(), 35u);
  for (const Json& one : document["cases"]) {
    SCOPED_TRACE(one["name"].get<std::string>());
    std::string text;
    const std::string error = test::error_text<DataError>([&] {
      const auto parsed = Template::parse(one["template"].get<std::string>(), "t");
      text = parsed.render(*variables.dict(), document["date"].get<std::int64_t>()).bytes;
    });
    if (one.contains("error")) {
      EXPECT_NE(error, "(no error)") << one["error"];
    } else {
      EXPECT_EQ(error, "(no error)");
      EXPECT_EQ(text, one["text"].get<std::string>());
    }
  }
}

TEST(Template, NamesWhatIsNotKnownAndItsLine) {
  EXPECT_EQ(error_of("a\n{% include 'x' %}"), "t:2: {% include %} isn't supported.");
  EXPECT_EQ(error_of("\n\n{{ x | wordwrap }}"), "t:3: the filter \"wordwrap\" isn't supported.");
  EXPECT_EQ(error_of("{{ x is weird }}"), "t:1: the test \"weird\" isn't supported.");
  EXPECT_EQ(error_of("{% for x in y recursive %}{% endfor %}"),
            "t:1: recursive loops aren't supported.");
  EXPECT_EQ(error_of("{% if x %}"), "t:1: this block has no endif.");
  EXPECT_EQ(error_of("\n{{ raise_exception('No!') }}"), "t:2: No!");
  EXPECT_EQ(error_of("{{ strftime_now('%Y') }}"),
            "t:1: strftime_now is undefined, so it can't be called");
}

TEST(Template, RefusesUnknownFiltersInABranchOnlyWhenTheyAreReached) {
  const std::string source = "{% if x %}{{ 1 | weird }}{% endif %}ok";
  EXPECT_EQ(rendered(source, R"({"x": false})"), "ok");
  EXPECT_EQ(error_of(source, R"({"x": true})"), "t:1: the filter \"weird\" isn't supported");
}

// Each byte by hand: t the template's, d of the data, g generated.
TEST(Template, KnowsWhereEveryByteCameFrom) {
  const auto marks = [](const std::string& source) {
    const Value variables = value_of_json(R"({"x": " ab ", "d": {"k": "v"}})", kFromData);
    const MarkedText text = Template::parse(source, "t").render(*variables.dict());
    std::string letters;
    for (const char mark : text.marks) {
      letters += (mark & kGenerated) != 0 ? 'g' : (mark & kFromData) != 0 ? 'd' : 't';
    }
    return text.bytes + " " + letters;
  };
  EXPECT_EQ(marks("<{{ x }}>"), "< ab > tddddt");
  EXPECT_EQ(marks("{{ '<' + x | trim + '>' }}"), "<ab> tddt");
  EXPECT_EQ(marks("{{ x.strip().upper() ~ '.' }}"), "AB. ddt");
  EXPECT_EQ(marks("{{ x.strip().replace('b', 'c') }}"), "ac dt");
  EXPECT_EQ(marks("{{ d | tojson }}"), R"({"k": "v"} ttdttttdtt)");
  EXPECT_EQ(marks("{{ x[1:2] }}{{ [x, 'y'] | join('-') }}"), "a ab -y dddddtt");
  EXPECT_EQ(marks("a{% generation %}{{ x }}!{% endgeneration %}b"), "a ab !b tgggggt");
}

TEST(Template, JsonThatIsNoneIsAProblemWithItsPlace) {
  EXPECT_THROW(value_of_json("{\"a\": ", 0), Problem);
  EXPECT_THROW(value_of_json(std::string(500, '['), 0), Problem);
}

}  // namespace
}  // namespace sherd::templates
