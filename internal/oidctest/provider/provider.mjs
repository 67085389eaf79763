// An OpenID provider for tests, whose forms accept any password. Its configuration is the JSON in PROVIDER. It has new
// keys at each start, prints a line when it listens, and ends with its standard input.
import { generateKeyPairSync, randomUUID } from 'node:crypto';
import Provider from 'oidc-provider';

const { issuer, clientId, secret, redirectURL, accounts, claimsInIDToken } = JSON.parse(process.env.PROVIDER);

const key = generateKeyPairSync('ec', { namedCurve: 'P-256' }).privateKey.export({ format: 'jwk' });

const provider = new Provider(issuer, {
  clients: [{
    client_id: clientId,
    ...(secret ? { client_secret: secret } : { token_endpoint_auth_method: 'none' }),
    redirect_uris: [redirectURL],
    grant_types: ['authorization_code'],
    id_token_signed_response_alg: 'ES256',
  }],
  jwks: { keys: [{ ...key, kid: randomUUID(), alg: 'ES256', use: 'sig' }] },
  cookies: { keys: [randomUUID()] },
  claims: {
    openid: ['sub', 'roles', 'realm_access'],
    email: ['email', 'email_verified'],
    profile: ['preferred_username'],
  },
  conformIdTokenClaims: !claimsInIDToken,
  pkce: { required: () => true, methods: ['S256'] },
  findAccount: (_, id) => accounts[id] && { accountId: id, claims: () => ({ sub: id, ...accounts[id] }) },
});

const { hostname, port } = new URL(issuer);
provider.listen(Number(port), hostname, () => console.log('listening'));
process.stdin.resume().on('end', () => process.exit(0));
