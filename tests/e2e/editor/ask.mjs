// Asks VS Code's JSON language service, as an editor does: ask.mjs FILE, with {"text", "at", "what"} in each
// line of its input. Prints for each a line with the answer at character `at`: mistakes, hover or completions.
import {readFileSync} from "node:fs";
import {createInterface} from "node:readline";
import {pathToFileURL} from "node:url";
import languageService from "vscode-json-languageservice";

const {getLanguageService, TextDocument} = languageService;
const file = pathToFileURL(process.argv[2]).href;
const service = getLanguageService({
  workspaceContext: {resolveRelativePath: (path, from) => new URL(path, from).href},
  schemaRequestService: async uri => readFileSync(new URL(uri), "utf8"),
});
service.configure({validate: true, allowComments: false});

async function answer({text, at, what}) {
  const document = TextDocument.create(file, "json", 1, text);
  const parsed = service.parseJSONDocument(document);
  if (what === "mistakes") {
    return (await service.doValidation(document, parsed)).map(found => found.message);
  }
  const place = document.positionAt(at);
  if (what === "hover") {
    return (await service.doHover(document, place, parsed))?.contents ?? [];
  }
  const {items} = await service.doComplete(document, place, parsed);
  return items.map(({label, documentation}) => ({label, documentation}));
}

for await (const question of createInterface({input: process.stdin})) {
  console.log(JSON.stringify(await answer(JSON.parse(question))));
}
