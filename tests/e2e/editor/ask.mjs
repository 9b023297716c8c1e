// Asks VS Code's JSON language service, as an editor does: ask.mjs FILE < [{"text", "at", "what"}, ...]
// Prints a list with what it answers at character `at` of each text: mistakes, hover or completions.
import {readFileSync} from "node:fs";
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

const answers = [];
for (const question of JSON.parse(readFileSync(0, "utf8"))) {
  answers.push(await answer(question));
}
console.log(JSON.stringify(answers));
