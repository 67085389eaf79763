// Prints the JSON schema of the type Page. It allows no other properties than the types have.
import { createGenerator } from 'ts-json-schema-generator';

const generator = createGenerator({ path: 'page.ts', type: 'Page', skipTypeCheck: true });
console.log(JSON.stringify(generator.createSchema('Page')));
